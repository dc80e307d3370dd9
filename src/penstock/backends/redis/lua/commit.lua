-- What is planned becomes visible: rows of queues, and the record of it in the system's world.
-- KEYS: store, queues, worlds, entries, frames of the system's world, store, plan.
-- ARGV: 3 the plan as it was written down, 4 changes; op ('c', 'u', 'd', 't'), name and row of each; then what is to be
-- appended (see _worlds.lua). Answers {0}; {-1} where the plan is carried out; {-2} where the world is not as it was.
--: worlds
local changes = tonumber(ARGV[4])
local at = 5 + 3 * changes
if call('GET', KEYS[7]) ~= ARGV[3] then return {NOT_FOUND} end
-- Of queues that only count as changed there is no record: they do so once more.
local first = ARGV[at + 6 + 2 * tonumber(ARGV[at + 4])]
if first and call('HEXISTS', KEYS[4], first) == 1 then return {DONE_NOW} end
if not append_world({KEYS[3], KEYS[4], KEYS[5], KEYS[1]}, at) then return {CHANGED} end
call('HINCRBY', KEYS[1], 'version', 1)
for i = 1, changes do
  local op, name, row = ARGV[2 + 3 * i], ARGV[3 + 3 * i], ARGV[4 + 3 * i]
  if op == 'd' then call('HDEL', KEYS[2], name) else call('HSET', KEYS[2], name, row) end
end
return {DONE_NOW}
