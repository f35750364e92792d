#!lua
-- Announces the schema that a replica speaks, and tells what all replicas announced.
--
-- KEYS  1 hash of announcements
-- ARGV  1 replica ("" = announce nothing), 2 schema, 3 time to live, ms
-- Field "<replica>" = "<schema> <end, ms>"
-- Reply {replica, schema, replica, schema, ...}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + tonumber(ARGV[3])))
end
local told = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local schema, ends = string.match(all[i + 1], '^(%d+) (%d+)$')
  if schema and now <= tonumber(ends) then
    told[#told + 1], told[#told + 2] = all[i], schema
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return told
