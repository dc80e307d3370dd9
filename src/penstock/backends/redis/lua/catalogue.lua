-- Create, change and delete queues, and record it in the system's world: all of it or nothing.
-- KEYS: store, queues, worlds, entries, frames of the system's world, store; then all keys of each queue, and of each that
-- is deleted what they are called afterwards, if a snapshot shows it.
-- ARGV: 3 version of the catalogue, 4 changes; op ('c', 'u', 'd'; of a further group's line 'n', 'v', 'x'; 'f'
-- of a group that has the queue's own line from now on), name, row
-- and counters of each; then what is to be appended (see _worlds.lua). Answers {0}, {-2} where the catalogue is not
-- as it was, or {1} where a repair has one of the queues.
--: bodies flows steps time worlds lines limits deleting
local FIRST = 6
local changes = tonumber(ARGV[4])
if changes > 0 and appended(KEYS[4], 5 + 4 * changes) then return {DONE_NOW} end
if (call('HGET', KEYS[1], 'version') or '0') ~= ARGV[3] then return {CHANGED} end
for i = 1, changes do
  local op = ARGV[1 + 4 * i]
  if (op == 'u' or op == 'v') and not changeable(FIRST + OF_QUEUE * (i - 1)) then return {MORE} end
end
if changes > 0 and not append_world({KEYS[3], KEYS[4], KEYS[5], KEYS[1]}, 5 + 4 * changes) then return {CHANGED} end
call('HINCRBY', KEYS[1], 'version', 1)

local boundary, aside = 0, FIRST + OF_QUEUE * changes
for i = 1, changes do
  local at, a = FIRST + OF_QUEUE * (i - 1), 1 + 4 * i
  local op, name = ARGV[a], ARGV[a + 1]
  if op == 'd' then
    call('HDEL', KEYS[2], name)
    delete_queue(at, aside)
    aside = aside + OF_QUEUE
  elseif op == 'x' or op == 'f' then
    drop_line(at, string.match(name, '%z(.*)$'))
  else
    if op == 'n' then drop_line(at, string.match(name, '%z(.*)$')) end
    if op == 'c' or op == 'u' then call('HSET', KEYS[2], name, ARGV[a + 2]) end
    if op == 'c' or op == 'n' then
      call('SET', KEYS[at + C], ARGV[a + 3])
      if op == 'n' then begin_line(at, boundary) end
    else
      local q = {at = at, c = changeable(at)}
      if op == 'u' then boundary = q.c[SEQ] end
      change_settings(q, cmsgpack.unpack(ARGV[a + 3]))
    end
  end
  redis.pcall('PUBLISH', KEYS[at + C], '')
end
return {DONE_NOW}
