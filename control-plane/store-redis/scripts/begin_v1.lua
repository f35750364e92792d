#!lua
-- Begins an incarnation of a shard, unless someone else did.
--
-- KEYS  1 meta, 2 rev, 3 stream
-- ARGV  1 incarnation that the caller found, whichever server it began on ("" = none)
--       2 largest incarnation that the caller knows of
--       3 not_after, ms
--       4 entries to keep in the stream (approximately)
-- Reply the incarnation that stands on this server afterwards, or ""
--
-- The new incarnation is larger than what was found, what is known and what the stream ever held, and at
-- least TIME in ms: so ids of the stream, <incarnation>-<revision>, never go back and never collide. Its
-- entry <incarnation>-0 tells followers to read the shard.

local function standing()
  local meta = redis.call('GET', KEYS[1])
  if not meta or redis.call('EXISTS', KEYS[2]) == 0 then
    return ''
  end
  local begun, server = string.match(meta, '^(%d+) (%w+)$')
  if server == string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then
    return begun
  end
  return ''
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) ') or ''
if now > tonumber(ARGV[3]) or found ~= ARGV[1] then
  return standing()
end

local larger = math.max(tonumber(ARGV[2]), found == '' and 0 or tonumber(found))
if redis.call('EXISTS', KEYS[3]) == 1 then
  local stream = redis.call('XINFO', 'STREAM', KEYS[3])
  for i = 1, #stream, 2 do
    if stream[i] == 'last-generated-id' then
      larger = math.max(larger, tonumber(string.match(stream[i + 1], '^(%d+)')))
    end
  end
end
local begun = string.format('%.0f', math.max(larger + 1, now))
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], begun .. '-0', 'begin', begun)
redis.call('SET', KEYS[1], begun .. ' ' .. server)
redis.call('SET', KEYS[2], '0')
return begun
