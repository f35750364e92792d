#!lua flags=no-writes
-- Reads the state of a shard without its values.
--
-- KEYS  1 meta, 2 rev
-- Reply {found incarnation or "", "1" if it began on this server, revision, now}

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local meta, rev = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
local found, stands = '', '0'
if meta then
  local server
  found, server = string.match(meta, '^(%d+) (%w+)$')
  if rev and server == string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then
    stands = '1'
  end
end
return {found, stands, rev or '0', now}
