#!lua
-- Replaces one value outside the change stream if the expected version stands.
--
-- KEYS  1 the value
-- ARGV  1 not_after, ms: nothing is written when TIME is past it
--       2 expected version ("" = absent)
--       3 schema, 4 expires_at as it is kept (ms), 5 expires_at as the server can count it (ms), 6 payload
-- Value "<schema> <version> <expires_at>\n<payload>"
-- Reply {"swapped", version, now}
--       {"refused", reason, text or nil, now}
--
-- The order of refusals is part of the contract: late, conflict. A version is TIME in microseconds, or one more than
-- the last if that is not larger: so a value that ended and came back has another one. No incarnation is asked for:
-- after a loss the value is absent, and that is all there is to know.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = string.format('%.0f', now)
local text = redis.call('GET', KEYS[1])
if now > tonumber(ARGV[1]) then
  return {'refused', 'late', text, now_text}
end
local standing = ''
if text then
  standing = string.match(text, '^%d+ (%d+) ')
end
if standing ~= ARGV[2] then
  return {'refused', 'conflict', text, now_text}
end
local version = time[1] * 1000000 + time[2]
if text then
  version = math.max(version, tonumber(standing) + 1)
end
version = string.format('%.0f', version)
redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. version .. ' ' .. ARGV[4] .. '\n' .. ARGV[6], 'PXAT', ARGV[5])
return {'swapped', version, now_text}
