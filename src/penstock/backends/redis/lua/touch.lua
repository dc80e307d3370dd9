-- A queue counts as changed: whoever knows it looks at it, and at the list of keys, again. KEYS: store, queues, counters.
-- ARGV: 3 version of the catalogue, 4 name, 5 row as it was, 6 as it will be. Answers {0} or {-2} where that is not so.
if (call('HGET', KEYS[1], 'version') or '0') ~= ARGV[3] then return {CHANGED} end
if call('HGET', KEYS[2], ARGV[4]) ~= ARGV[5] then return {CHANGED} end
-- Counters that are damaged or missing are for a repair to make anew, as the row says.
local raw = redis.pcall('GET', KEYS[3])
local read, c = pcall(cmsgpack.unpack, raw)
if type(raw) == 'string' and read and type(c) == 'table' and type(c[SETTINGS]) == 'number' then
  -- Not while a repair has it.
  if c[SETTINGS] < 0 then return {CHANGED} end
  c[SETTINGS] = tonumber(ARGV[3]) + 1
  call('SET', KEYS[3], cmsgpack.pack(c))
end
call('HINCRBY', KEYS[1], 'version', 1)
call('HSET', KEYS[2], ARGV[4], ARGV[6])
return {DONE_NOW}
