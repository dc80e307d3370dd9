-- Values of the store's own hashes, sealed anew: each only if it still is as it was read. KEYS: store, the hash.
-- ARGV: 3 list of keys that the caller seals with, then field, SHA-1 of the value as it was, and the value of each.
-- Answers {0, time, '1' or '0' (not as it was) for each}, or {-2} where the list is another.
if (call('HGET', KEYS[1], 'keys') or '') ~= ARGV[3] then return {CHANGED} end
local answers = {}
for i = 4, #ARGV, 3 do
  local old = call('HGET', KEYS[2], ARGV[i])
  local same = old and redis.sha1hex(old) == ARGV[i + 1]
  if same then call('HSET', KEYS[2], ARGV[i], ARGV[i + 2]) end
  answers[#answers + 1] = same and '1' or '0'
end
return {DONE_NOW, now, concat(answers)}
