-- Store a user's value. KEYS: store, state. ARGV: 3 list of keys that the caller seals with, 4 name, 5 value.
-- Answers {0} or {-2} where the list is another.
if (call('HGET', KEYS[1], 'keys') or '') ~= ARGV[3] then return {CHANGED} end
call('HSET', KEYS[2], ARGV[4], ARGV[5])
return {DONE_NOW}
