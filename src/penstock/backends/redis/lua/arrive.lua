-- Messages of another queue of a cluster arrive. Touches c m s z o d t h j k b a x i n e q f0-f9 of one queue, and of the
-- lines of its further groups.
-- ARGV: 3 settings, 4 transfer, 5 number of the line that they come from (4), 6 its address, 7 flags of the new records and the kind of event,
-- 8 rows; then id, lane, body and reason of each. A row: when it becomes visible, 0 for at once (8), expiry (8), when it
-- was enqueued (8), weight (2).
-- Answers {0, time, '1' arrived or '2' there already, for each}: the same again, however often it is asked.
--: bodies flows steps time views redriving
local q, no = open(0, 3)
if not q then return no end
local c, transfer, flags, rows, n = q.c, ARGV[4], sub(ARGV[7], 1, 1), ARGV[8], (#ARGV - 8) / 4
local before = call('HGET', KEYS[N], transfer)
if before then
  return {DONE_NOW, now, sub(before, 15, 14 + byte(before, 13) * 256 + byte(before, 14))}
end
before = remembered(0, transfer)
if before then return {DONE_NOW, now, before} end
local views = open_views(OF_QUEUE, q)
if not views then return {CHANGED} end
local ids, answers, seen = {}, {}, {}
for i = 1, n do ids[i] = ARGV[5 + 4 * i] end
-- What died in one group is redriven though others have it.
local redriven = byte(ARGV[7], 2) == 9
local known = known_under(q, redriven and {} or views, ids)
local came_ids, bodies, dues, reasons, lined_up = {}, {}, {}, {}, lines_up(q)
local now_ready, now_delayed = {ids = {}, recs = {}}, {ids = {}, recs = {}}
for i = 1, n do
  local id, r = ids[i], 26 * i - 25
  answers[i] = '2'
  if (known[id] or 6) == 6 and not seen[id] then
    local at, due8, weight = #came_ids + 1, sub(rows, r, r + 7), sub(rows, r + 24, r + 25)
    local delayed = u64(due8, 1) > now
    local waits = not delayed and lined_up
    local seq8, visible8 = pack('>I8', c[SEQ] + at), delayed and due8 or now8
    local place = delayed and due8 .. sub(seq8, 3) .. weight or last_place(q, c[SEQ] + at, weight)
    local until8 = delayed and visible8 or zero8
    if waits then until8, visible8 = into_line(q) end
    if known[id] then unhold(q, id) end
    came_ids[at], dues[at], reasons[at] = id, visible8, ARGV[8 + 4 * i]
    bodies[2 * at - 1], bodies[2 * at] = id, ARGV[7 + 4 * i]
    local list = (delayed or waits) and now_delayed or now_ready
    list.ids[#list.ids + 1] = id
    list.recs[#list.recs + 1] = ((delayed or waits) and '\1' or '\2') .. flags .. '\0\0\0\0' .. now8
      .. until8 .. sub(rows, r + 8, r + 15) .. seq8 .. visible8
      .. sub(rows, r + 16, r + 23) .. place .. ARGV[6 + 4 * i] .. '\0\0\0\0\0\0'
      .. entry_for(seq8, #ARGV[7 + 4 * i])
    answers[i], seen[id] = '1', true
  elseif redriven and not seen[id] and give_again(views, q, id, sub(rows, r + 8, r + 15)) then
    answers[i], seen[id] = '1', true
  end
end
local answer = concat(answers)
if #came_ids > 0 then
  put_bodies(0, bodies, 1, #came_ids, c[SEQ])
  if #now_ready.ids > 0 then enter_ready(q, now_ready.ids, now_ready.recs, false) end
  if #now_delayed.ids > 0 then enter(q, 1, now_delayed.ids, now_delayed.recs) end
  c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + #came_ids
  record(q, 1, #came_ids, concat(came_ids), 0, column(dues, 8), '', reasons, string.match(ARGV[6], '^[^%z]*'))
  rate(q, 'e', #came_ids)
end
call('HSET', KEYS[N], transfer, now8 .. ARGV[5] .. pack('>I2', #answer) .. answer .. ARGV[6])
close(q)
tell(q)
for _, list in ipairs(#views > 0 and {now_ready, now_delayed} or {}) do
  if #list.ids > 0 then fan_out(views, 0, list.ids, list.recs) end
end
close_views(views)
return {DONE_NOW, now, answer}
