-- Create, change and delete queues, and record it in the system's world: all of it or nothing.
-- KEYS: store, queues, worlds, entries, frames of the system's world, store; then all keys of each queue, and of each that
-- is deleted what they are called afterwards, if a snapshot shows it.
-- ARGV: 3 version of the catalogue, 4 changes; op ('c', 'u', 'd'), name, row and counters of each; then what is to be
-- appended (see _worlds.lua). Answers {0} or {-2} where the catalogue is not as it was.
--: flows steps worlds limits deleting
local OF_QUEUE, FIRST = F + 9, 6
local changes = tonumber(ARGV[4])
if changes > 0 and appended(KEYS[4], 5 + 4 * changes) then return {DONE_NOW} end
if (call('HGET', KEYS[1], 'version') or '0') ~= ARGV[3] then return {CHANGED} end
if changes > 0 and not append_world({KEYS[3], KEYS[4], KEYS[5], KEYS[1]}, 5 + 4 * changes) then return {CHANGED} end
call('HINCRBY', KEYS[1], 'version', 1)

local aside = FIRST + OF_QUEUE * changes
for i = 1, changes do
  local at, a = FIRST + OF_QUEUE * (i - 1), 1 + 4 * i
  local op, name = ARGV[a], ARGV[a + 1]
  if op == 'd' then
    call('HDEL', KEYS[2], name)
    delete_queue(at, aside)
    aside = aside + OF_QUEUE
  else
    call('HSET', KEYS[2], name, ARGV[a + 2])
    if op == 'c' then
      call('SET', KEYS[at + C], ARGV[a + 3])
    else
      change_settings({at = at, c = cmsgpack.unpack(call('GET', KEYS[at + C]))}, cmsgpack.unpack(ARGV[a + 3]))
    end
  end
  redis.pcall('PUBLISH', KEYS[at + C], '')
end
return {DONE_NOW}
