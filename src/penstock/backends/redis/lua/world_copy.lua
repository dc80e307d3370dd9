-- A world is sealed anew: some of its frames go to a copy, which takes its place in the end.
-- KEYS: worlds, entries, frames of the world, store, the copy. ARGV: 3 list of keys that the caller seals with, 4 name,
-- 5 last entry of the copy ('' to begin), 6 record as it was ('' to go on) and 7 as it will be, then entry and frame of each.
-- Answers {0, its last entry}, {1} where another has the copy, {-2} where world or list are not as they were.
if (call('HGET', KEYS[4], 'keys') or '') ~= ARGV[3] then return {CHANGED} end
local last = ARGV[5]
if last == '' then call('DEL', KEYS[5]) end
local top = call('XREVRANGE', KEYS[5], '+', '-', 'COUNT', 1)[1]
if (top and top[1] or '') ~= last then return {MORE} end
if ARGV[6] ~= '' and call('HGET', KEYS[1], ARGV[4]) ~= ARGV[6] then return {CHANGED} end
for i = 8, #ARGV, 2 do
  call('XADD', KEYS[5], ARGV[i], 'f', ARGV[i + 1])
  last = ARGV[i]
end
if ARGV[6] ~= '' then
  local length = call('XLEN', KEYS[3])
  call('XTRIM', KEYS[5], 'MAXLEN', length)
  if length > 0 then call('RENAME', KEYS[5], KEYS[3]) else call('DEL', KEYS[5]) end
  call('HSET', KEYS[1], ARGV[4], ARGV[7])
end
return {DONE_NOW, last}
