#!lua
-- Writes values and marks of one shard together or not at all.
--
-- The shebang line makes the server check before the script whether it may write at all (memory, disk, role).
--
-- KEYS  1 meta, 2 rev, 3 stream, 4 index, then one key per value, then one key per mark.
--       All in one slot; the first ends in "meta", and what is before that is the prefix of all others.
-- ARGV  1 incarnation known to the caller
--       2 not_after, ms: nothing is written when TIME is past it
--       3 entries to keep in the stream (approximately)
--       4 number of values, 5 number of marks, 6 time to live of a mark, ms
--       then per value: expected version ("incarnation revision", "" = absent), schema, expires_at as it is
--       kept (ms), expires_at as the server can count it (ms), payload
--       then per mark: first and last number of the run
-- Value "<schema> <incarnation> <revision> <expires_at>\n<payload>"
-- Meta  "<incarnation> <run id of the server it began on>"
-- Reply {"written", revision, now}
--       {"refused", reason, incarnation of this server or "", now, {text or nil per value}, {number or nil per mark}}
--
-- The order of refusals is part of the contract: empty, other_server, other_incarnation, late,
-- already_applied, conflict. The stream entry has the id <incarnation>-<revision> and is added before the
-- values, because it is the only command here that can fail.

local prefix = string.sub(KEYS[1], 1, -5)
local incarnation, value_count, mark_count = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = string.format('%.0f', now)

local stand, texts, marks = '', {}, {}
for i = 1, value_count do
  texts[i] = redis.call('GET', KEYS[4 + i])
end
for i = 1, mark_count do
  marks[i] = redis.call('GET', KEYS[4 + value_count + i])
end

local function refuse(reason)
  return {'refused', reason, stand, now_text, texts, marks}
end

local meta, rev = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
if not meta or not rev then
  return refuse('empty')
end
local begun, server = string.match(meta, '^(%d+) (%w+)$')
if server ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then
  return refuse('other_server')
end
stand = begun
if begun ~= incarnation then
  return refuse('other_incarnation')
end
if now > tonumber(ARGV[2]) then
  return refuse('late')
end
local first_mark = 6 + 5 * value_count
for i = 1, mark_count do
  if marks[i] and tonumber(marks[i]) >= tonumber(ARGV[first_mark + 2 * i - 1]) then
    return refuse('already_applied')
  end
end
for i = 1, value_count do
  local version = ''
  if texts[i] then
    version = string.match(texts[i], '^%d+ (%d+ %d+) ')
  end
  if version ~= ARGV[5 * i + 2] then
    return refuse('conflict')
  end
end

local revision = string.format('%.0f', redis.call('INCR', KEYS[2]))
local entry = {'XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], incarnation .. '-' .. revision}
local index = {'ZADD', KEYS[4]}
for i = 1, value_count do
  local at = 5 * i + 2
  texts[i] = ARGV[at + 1] .. ' ' .. incarnation .. ' ' .. revision .. ' ' .. ARGV[at + 2] .. '\n' .. ARGV[at + 4]
  local name = string.sub(KEYS[4 + i], #prefix + 1)
  entry[#entry + 1], entry[#entry + 2] = name, texts[i]
  index[#index + 1], index[#index + 2] = ARGV[at + 3], name
end
local mark_end = string.format('%.0f', now + tonumber(ARGV[6]))
for i = 1, mark_count do
  local name = string.sub(KEYS[4 + value_count + i], #prefix + 1)
  entry[#entry + 1], entry[#entry + 2] = name, ARGV[first_mark + 2 * i]
  index[#index + 1], index[#index + 2] = mark_end, name
end
redis.call(unpack(entry))
for i = 1, value_count do
  redis.call('SET', KEYS[4 + i], texts[i], 'PXAT', ARGV[5 * i + 5])
end
for i = 1, mark_count do
  redis.call('SET', KEYS[4 + value_count + i], ARGV[first_mark + 2 * i], 'PX', ARGV[6])
end
redis.call(unpack(index))
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. now_text)
return {'written', revision, now_text}
