-- How far a rekeying is. KEYS: store.
-- ARGV: 3 list of keys that it seals with, 4 position, 5 '1' to begin. Answers {0} or {-2} where it is over.
if (call('HGET', KEYS[1], 'keys') or '') ~= ARGV[3] then return {CHANGED} end
if call('HEXISTS', KEYS[1], 'rekey') == 0 and ARGV[5] ~= '1' then return {CHANGED} end
call('HSET', KEYS[1], 'rekey', ARGV[4])
return {DONE_NOW}
