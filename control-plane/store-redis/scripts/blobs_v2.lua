#!lua flags=no-writes
-- Reads the blobs of all replicas, a piece at a time.
--
-- KEYS  1 index of blobs ("...:index"; a blob is "...:b:<replica>", in the same slot)
-- ARGV  1 bytes of payloads after which no other one is added, then replica, version, replica, version, ...: what the
--       caller has
-- Reply {replica, version, payload, replica, version, payload, ...}; no payload where the caller has the version, and
--       none of those that are left for the next call

local prefix = string.sub(KEYS[1], 1, -6) .. 'b:'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = tonumber(ARGV[1])
local known = {}
for i = 2, #ARGV, 2 do
  known[ARGV[i]] = ARGV[i + 1]
end
local told = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local version, ends = string.match(all[i + 1], '^(%d+) (%d+)$')
  if version and now <= tonumber(ends) then
    local tell, payload = true, false
    if known[all[i]] ~= version and left > 0 then
      payload = redis.call('GET', prefix .. all[i])
      tell = payload
      left = left - (payload and #payload or 0)
    end
    if tell then
      told[#told + 1], told[#told + 2], told[#told + 3] = all[i], version, payload
    end
  end
end
return told
