-- Dead messages wait again in their own queue. Touches c s z o d t y j k b a x i e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 seqs that the records must have (8 each), then the ids. Answers {0, time, how many}.
--: bodies flows steps
local q, no = open(0, 3)
if not q then return no end
if q.again then return {DONE_NOW, now, tonumber(q.again)} end
local c, ids, recs, revived = q.c, {}, {}, {}
local found = call('HMGET', KEYS[S], unpack(ARGV, 5))
for i, rec in ipairs(found) do
  if rec and byte(rec) == 5 and sub(rec, 31, 38) == sub(ARGV[4], 8 * i - 7, 8 * i) then
    ids[#ids + 1], recs[#recs + 1] = ARGV[4 + i], rec
  end
end
if #ids > 0 then
  local waits, until8, visible8 = lines_up(q), zero8, now8
  if waits then until8, visible8 = into_line(q) end
  leave(q, ids, recs)
  for i, rec in ipairs(recs) do
    local place = last_place(q, c[SEQ] + i, sub(rec, 69, 70))
    revived[i] = turned(rec, waits and 1 or 2, '\0\0\0\0', until8, zero8,
      pack('>I8', c[SEQ] + i), visible8, place)
  end
  if waits then enter(q, 1, ids, revived) else enter_ready(q, ids, revived, false) end
  record(q, 9, #ids, concat(ids), 0, u64(visible8, 1))
  remember_call(q, tostring(#ids))
  close(q)
  tell(q)
end
return {DONE_NOW, now, #ids}
