#!lua flags=no-writes
-- Reads the blobs of all replicas.
--
-- KEYS  1 index of blobs ("...:index"; a blob is "...:b:<replica>", in the same slot)
-- ARGV  replica, version, replica, version, ...: what the caller has
-- Reply {replica, version, payload, replica, version, payload, ...}; no payload where the caller has the version

local prefix = string.sub(KEYS[1], 1, -6) .. 'b:'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = {}
for i = 1, #ARGV, 2 do
  known[ARGV[i]] = ARGV[i + 1]
end
local told = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local version, ends = string.match(all[i + 1], '^(%d+) (%d+)$')
  if version and now <= tonumber(ends) then
    local has = known[all[i]] == version
    local payload = not has and redis.call('GET', prefix .. all[i])
    if has or payload then
      told[#told + 1], told[#told + 2], told[#told + 3] = all[i], version, payload
    end
  end
end
return told
