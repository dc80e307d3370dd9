-- A queue of a cluster is made, changed or deleted, as planned, with the lines of its further groups; what was done
-- already, or is out of date, is not done: numbers of queues and of settings only ever grow.
-- Touches all keys of one queue, those that it has afterwards if it is deleted and a snapshot shows it, and those of lines.
-- ARGV: 3 op ('c', 'u', 'd'), 4 counters as of a new queue; then op ('n' comes, 'v' stays, 'x' goes, 'f' has the own line now), group and counters
-- of each line. Answers {0}, or {-2} while a repair has it.
--: bodies flows steps time lines limits deleting
local op, new = ARGV[3], cmsgpack.unpack(ARGV[4])

-- Counters as they are stored, or nil: damaged ones are for a repair to make anew.
local function stored(at)
  local raw = call('GET', KEYS[at + C])
  local read, c = pcall(cmsgpack.unpack, raw or '')
  return read and type(c) == 'table' and tonumber(c[NUMBER]) and c or nil
end
local c = stored(0)
local mine = c and c[NUMBER] == new[NUMBER]

-- All lines in the same step: who has the queue's new number finds them there.
local function change_lines(at, boundary)
  for i = 5, #ARGV, 3 do
    local what, line = ARGV[i], stored(at)
    -- Of one that comes, too: a replica that took over may have brought back what was dropped.
    if what ~= 'v' then drop_line(at, ARGV[i + 1]) end
    if what == 'n' then
      call('SET', KEYS[at + C], ARGV[i + 2])
      begin_line(at, boundary)
    elseif what == 'v' and line then
      change_settings({at = at, c = line}, cmsgpack.unpack(ARGV[i + 2]))
    end
    redis.pcall('PUBLISH', KEYS[at + C], '')
    at = at + OF_QUEUE
  end
end

-- Of one that is being repaired: what was planned waits.
if op == 'u' and mine and c[SETTINGS] < new[SETTINGS] then
  local at = OF_QUEUE
  local free = changeable(0)
  for i = 5, #ARGV, 3 do
    if ARGV[i] == 'v' and stored(at) then free = free and changeable(at) end
    at = at + OF_QUEUE
  end
  if not free then return {CHANGED} end
end

if op == 'c' and not mine and not (c and c[NUMBER] > new[NUMBER]) then
  for k = 1, OF_QUEUE do call('UNLINK', KEYS[k]) end
  call('SET', KEYS[C], ARGV[4])
elseif op == 'u' and mine and c[SETTINGS] < new[SETTINGS] then
  change_settings({at = 0, c = c}, new)
  change_lines(OF_QUEUE, c[SEQ])
elseif op == 'd' and (mine or not c) then
  delete_queue(0, OF_QUEUE)
  change_lines(2 * OF_QUEUE)
end
redis.pcall('PUBLISH', KEYS[C], '')
return {DONE_NOW}
