-- Deliveries failed, and what becomes of them is decided: back in line, dead here, or dropped.
-- Touches c m s z o d l y t h j b k a x i e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 kind of event (6 nacked, 7 released), 5 rows, then id and reason of each.
-- A row: token (8), action ('b' back, 'x' dead, 'o' dropped), delay in microseconds (8).
-- Answers {0, time, '1' or '0' (the lease is another's, or over) for each}.
--: bodies flows steps
local q, no = open(0, 3)
if not q then return no end
local c, kind, rows, n = q.c, tonumber(ARGV[4]), ARGV[5], (#ARGV - 5) / 2
if q.again then return same_again(q, n) end
local ids, answers, seen = {}, {}, {}
for i = 1, n do ids[i] = ARGV[4 + 2 * i] end
local recs = call('HMGET', KEYS[S], unpack(ids))
local lists = {b = {ids = {}, recs = {}}, d = {ids = {}, recs = {}}, e = {ids = {}, recs = {}},
  x = {ids = {}, recs = {}}, o = {ids = {}, recs = {}}}
for _, list in pairs(lists) do list.reasons, list.delays = {}, {} end
local left, left_recs = {}, {}
for i = 1, n do
  local id, rec, r = ids[i], recs[i], 17 * i - 16
  answers[i] = '0'
  if rec and byte(rec) == 3 and sub(rec, 31, 38) == sub(rows, r, r + 7) and not seen[id] then
    local action, delay, expires = sub(rows, r + 8, r + 8), u64(rows, r + 9), u64(rec, 23)
    if action == 'b' and expires > 0 and expires <= now + delay then action = 'e' end
    if action == 'b' and delay > 0 then action = 'd' end
    local list = lists[action]
    local at = #list.ids + 1
    list.ids[at], list.recs[at], list.reasons[at], list.delays[at] = id, rec, ARGV[5 + 2 * i], delay
    answers[i], seen[id] = '1', true
    left[#left + 1], left_recs[#left_recs + 1] = id, rec
  end
end
if #left == 0 then return {DONE_NOW, now, concat(answers)} end
leave(q, left, left_recs)

local function columns(list)
  local attempts, consumers = {}, {}
  for i, rec in ipairs(list.recs) do attempts[i], consumers[i] = sub(rec, 3, 6), consumer_of(rec) end
  return column(attempts, 4), consumers
end

-- Back in line, at once or later; in a fifo queue where they stood.
local function back(list, delayed)
  if #list.ids == 0 then return end
  local attempts, consumers = columns(list)
  local entered, dues = {}, {}
  for i, rec in ipairs(list.recs) do
    local visible8, place = pack('>I8', now + list.delays[i]), nil
    if c[FIFO] == 0 then
      local seq, weight = c[SEQ] + i, sub(rec, 69, 70)
      place = delayed and visible8 .. sub(pack('>I8', seq), 3) .. weight or last_place(q, seq, weight)
    end
    dues[i] = visible8
    entered[i] = turned(rec, delayed and 1 or 2, nil, delayed and visible8 or zero8, nil, pack('>I8', c[SEQ] + i),
      visible8, place, '', list.reasons[i])
  end
  if delayed then enter(q, 1, list.ids, entered) else enter_ready(q, list.ids, entered, c[FIFO] == 1) end
  record(q, kind, #list.ids, concat(list.ids), attempts, column(dues, 8), consumers, list.reasons)
end
back(lists.b, false)
back(lists.d, true)

local e, x, o = lists.e, lists.x, lists.o
if #e.ids > 0 then
  forget(q, e.ids, e.recs, c[SEQ] + 1)
  record(q, 11, #e.ids, concat(e.ids), 0, 0)
end
if #x.ids > 0 then
  local attempts = columns(x)
  local remove_at = c[DEAD_RETENTION] > 0 and now + c[DEAD_RETENTION] or 0
  local until8, entered = pack('>I8', remove_at), {}
  for i, rec in ipairs(x.recs) do
    entered[i] = turned(rec, 5, nil, until8, nil, pack('>I8', c[SEQ] + i), nil, nil, '', x.reasons[i])
    entered[i] = sub(entered[i], 1, 1) .. '\0' .. sub(entered[i], 3)
  end
  enter(q, 5, x.ids, entered)
  record(q, 8, #x.ids, concat(x.ids), attempts, remove_at, '', x.reasons)
end
if #o.ids > 0 then
  local attempts, consumers = columns(o)
  forget(q, o.ids, o.recs, c[SEQ] + 1)
  record(q, 14, #o.ids, concat(o.ids), attempts, 0, consumers, o.reasons)
end
c[FAILED_TOTAL] = c[FAILED_TOTAL] + #left
rate(q, 'f', #left)
remember_call(q, unusual(concat(answers)))
close(q)
tell(q)
return {DONE_NOW, now, concat(answers)}
