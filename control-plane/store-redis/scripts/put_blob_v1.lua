#!lua
-- Publishes a replica's blob in place of its last one.
--
-- KEYS  1 index of blobs ("...:index"; a blob is "...:b:<replica>", in the same slot)
-- ARGV  1 replica, 2 time to live, ms, 3 payload, 4 most blobs that are kept
-- Field "<replica>" = "<version> <end, ms>"; the version is the time in microseconds, which no loss of memory repeats
-- Reply the version

local prefix = string.sub(KEYS[1], 1, -6) .. 'b:'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local version = string.format('%.0f', time[1] * 1000000 + time[2])
local ends = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('SET', prefix .. ARGV[1], ARGV[3], 'PX', ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], version .. ' ' .. ends)

local function drop(replica)
  redis.call('HDEL', KEYS[1], replica)
  redis.call('DEL', prefix .. replica)
end
local held = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local last = tonumber(string.match(all[i + 1], '^%d+ (%d+)$'))
  if last and now <= last then
    held[#held + 1] = {all[i], last}
  else
    drop(all[i])
  end
end
table.sort(held, function(one, two) return one[2] < two[2] end)
for i = 1, #held - tonumber(ARGV[4]) do
  drop(held[i][1])
end
return version
