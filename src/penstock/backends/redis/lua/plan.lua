-- Changes of queues of a cluster are written down before they are made. KEYS: store, entries, plan.
-- ARGV: 3 version of the catalogue, 4 the plan, 5 id of its first entry in the system's world,
-- 6 list of keys that its rows are sealed with. Answers {0}; {-2} where catalogue or list are not as they were; {1, plan} where another one has to be carried out first.
if sub(ARGV[2], 17, 17) == '1' and call('HEXISTS', KEYS[2], ARGV[5]) == 1 then return {DONE_NOW} end
local pending = call('GET', KEYS[3])
if pending == ARGV[4] then return {DONE_NOW} end
if pending then return {MORE, pending} end
if (call('HGET', KEYS[1], 'version') or '0') ~= ARGV[3] then return {CHANGED} end
if (call('HGET', KEYS[1], 'keys') or '') ~= ARGV[6] then return {CHANGED} end
call('SET', KEYS[3], ARGV[4])
return {DONE_NOW}
