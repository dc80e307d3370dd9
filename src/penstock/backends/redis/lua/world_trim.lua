-- Forget the first frames of a world. KEYS: worlds, entries, frames of the world, store.
-- ARGV: 3 name, 4 record as it was, 5 as it will be, 6 frames to remove, then ids of their entries.
-- Answers {0} or {-2} where the world is not as it was.
if call('HGET', KEYS[1], ARGV[3]) ~= ARGV[4] then return {CHANGED} end
call('XTRIM', KEYS[3], 'MAXLEN', call('XLEN', KEYS[3]) - tonumber(ARGV[6]))
call('HSET', KEYS[1], ARGV[3], ARGV[5])
for from = 7, #ARGV, 2000 do call('HDEL', KEYS[2], unpack(ARGV, from, math.min(from + 1999, #ARGV))) end
return {DONE_NOW}
