#!lua
-- Takes the next number of a shared counter.
--
-- KEYS  1 the counter
-- ARGV  1 how long it is kept from now, ms
-- Reply the number, from 0

local taken = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return taken - 1
