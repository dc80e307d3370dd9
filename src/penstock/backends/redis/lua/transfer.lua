-- Messages go from one queue to another: dead letters, moved and redriven ones.
-- Touches c m s z o d l y t h j b k a x i e q f0-f9 of both queues; the target's keys follow the source's, and
-- those of the lines of its further groups the target's.
-- ARGV: 3 and 4 settings, 5 kind of event (8 dead, 9 redriven, 10 moved), 6 and 7 names, 8 flags of the new records,
-- 9 rows; then id, lane, body and the reasons for both journals of each. A row: seq that the record must have (8), expiry (8).
-- Answers {0, time, '1' gone over, '0' not as it was, '2' there already, for each}.
--: bodies flows steps time views redriving
local TARGET = OF_QUEUE
local q, no = open(0, 3)
if not q then return no end
local kind, flags, rows, n = tonumber(ARGV[5]), ARGV[8], ARGV[9], (#ARGV - 9) / 5
if q.again then return same_again(q, n) end
local t, not_there = open(TARGET, 4)
if not t then return not_there end
local views = open_views(2 * OF_QUEUE, t)
if not views then return {CHANGED} end
local ids, answers, seen = {}, {}, {}
for i = 1, n do ids[i] = ARGV[5 + 5 * i] end
local here, known = call('HMGET', KEYS[S], unpack(ids)), known_under(t, kind == 9 and {} or views, ids)
local gone, recs, attempts, reasons = {}, {}, {}, {}
local came_ids, dues, arrivals, bodies, lined_up = {}, {}, {}, {}, lines_up(t)
local now_ready, now_delayed = {ids = {}, recs = {}}, {ids = {}, recs = {}}
for i = 1, n do
  local id, rec = ids[i], here[i]
  answers[i] = '0'
  if rec and sub(rec, 31, 38) == sub(rows, 16 * i - 15, 16 * i - 8) and not seen[id] then
    local is_known, expires8 = (known[id] or 6) ~= 6, sub(rows, 16 * i - 7, 16 * i)
    -- What died in one group is redriven though others have it.
    if is_known and not (kind == 9 and give_again(views, t, id, expires8)) then
      answers[i] = '2'
    else
      gone[#gone + 1], recs[#recs + 1], attempts[#attempts + 1] = id, rec, sub(rec, 3, 6)
      reasons[#reasons + 1] = ARGV[8 + 5 * i]
      answers[i], seen[id] = '1', true
    end
    if not is_known then
      -- The delay of the queue that it comes from stays behind.
      local at, delayed = #came_ids + 1, byte(rec) == 1 and not is_in_line(rec)
      local waits = not delayed and lined_up
      local seq8 = pack('>I8', t.c[SEQ] + at)
      local visible8 = delayed and sub(rec, 15, 22) or now8
      local place = delayed and visible8 .. sub(seq8, 3) .. sub(rec, 69, 70)
        or last_place(t, t.c[SEQ] + at, sub(rec, 69, 70))
      local until8 = delayed and visible8 or zero8
      if waits then until8, visible8 = into_line(t) end
      if known[id] then unhold(t, id) end
      came_ids[at], dues[at], arrivals[at] = id, visible8, ARGV[9 + 5 * i]
      bodies[2 * at - 1], bodies[2 * at] = id, ARGV[7 + 5 * i]
      local list = (delayed or waits) and now_delayed or now_ready
      list.ids[#list.ids + 1] = id
      list.recs[#list.recs + 1] = ((delayed or waits) and '\1' or '\2') .. flags .. '\0\0\0\0' .. now8
        .. until8 .. expires8 .. seq8 .. visible8
        .. sub(rec, 47, 54) .. place .. ARGV[6 + 5 * i] .. '\0\0\0\0\0\0'
        .. entry_for(seq8, #ARGV[7 + 5 * i])
    end
  end
end
if #gone > 0 then
  leave(q, gone, recs)
  forget(q, gone, recs, q.c[SEQ] + 1)
  record(q, kind, #gone, concat(gone), kind == 8 and column(attempts, 4) or 0, 0, '', reasons, ARGV[7])
  if kind == 8 then
    q.c[FAILED_TOTAL] = q.c[FAILED_TOTAL] + #gone
    rate(q, 'f', #gone)
  end
  remember_call(q, unusual(concat(answers)))
  close(q)
  tell(q)
end
if #came_ids > 0 then
  put_bodies(TARGET, bodies, 1, #came_ids, t.c[SEQ])
  if #now_ready.ids > 0 then enter_ready(t, now_ready.ids, now_ready.recs, false) end
  if #now_delayed.ids > 0 then enter(t, 1, now_delayed.ids, now_delayed.recs) end
  t.c[ENQUEUED_TOTAL] = t.c[ENQUEUED_TOTAL] + #came_ids
  record(t, 1, #came_ids, concat(came_ids), 0, column(dues, 8), '', arrivals, ARGV[6])
  rate(t, 'e', #came_ids)
  if #views > 0 then
    local arrived, of_arrived = {}, {}
    for _, list in ipairs({now_ready, now_delayed}) do
      for i, id in ipairs(list.ids) do arrived[#arrived + 1], of_arrived[#of_arrived + 1] = id, list.recs[i] end
    end
    fan_out(views, TARGET, arrived, of_arrived)
  end
end
if t.events > 0 then close(t) tell(t) end
close_views(views)
return {DONE_NOW, now, concat(answers)}
