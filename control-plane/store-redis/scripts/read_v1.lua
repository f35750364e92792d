#!lua flags=no-writes
-- Reads a shard whole, as of one moment.
--
-- KEYS  1 meta, 2 rev, 3 index
-- Reply {found incarnation or "", "1" if it began on this server, revision, now, {name, text, name, text, ...}}
--
-- The index names all keys of the shard that may be there: values ("v:...") and marks ("r:..."). A key that
-- has ended since is left out. The keys are in the slot of KEYS.

local prefix = string.sub(KEYS[1], 1, -5)
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
local texts = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], now, '+inf')) do
  local text = redis.call('GET', prefix .. name)
  if text then
    texts[#texts + 1], texts[#texts + 2] = name, text
  end
end
return {found, stands, rev or '0', now, texts}
