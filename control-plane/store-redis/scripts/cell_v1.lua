#!lua flags=no-writes
-- Reads one value outside the change stream.
--
-- KEYS  1 the value
-- Reply {text or nil, now}, the text as swap_v1 writes it

local time = redis.call('TIME')
return {redis.call('GET', KEYS[1]), string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))}
