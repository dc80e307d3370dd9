-- A queue of a cluster is made, changed or deleted, as planned; what was done already, or is out of date, is not done.
-- Touches all keys of one queue, and those that it has afterwards if it is deleted and a snapshot shows it.
-- ARGV: 3 op ('c', 'u', 'd'), 4 counters as of a new queue. Answers {0}.
-- Numbers of queues and of settings only ever grow.
--: bodies flows steps limits deleting
local op, new, raw, is_table = ARGV[3], cmsgpack.unpack(ARGV[4]), call('GET', KEYS[C]), false
local c
if raw then
  is_table, c = pcall(cmsgpack.unpack, raw)
  if not is_table or type(c) ~= 'table' or not tonumber(c[NUMBER]) then c = nil end
end
local mine = c and c[NUMBER] == new[NUMBER]

if op == 'c' and not mine and not (c and c[NUMBER] > new[NUMBER]) then
  for k = 1, OF_QUEUE do call('UNLINK', KEYS[k]) end
  call('SET', KEYS[C], ARGV[4])
elseif op == 'u' and mine and c[SETTINGS] < new[SETTINGS] then
  change_settings({at = 0, c = c}, new)
elseif op == 'd' and (mine or not c) then
  delete_queue(0, OF_QUEUE)
end
redis.pcall('PUBLISH', KEYS[C], '')
return {DONE_NOW}
