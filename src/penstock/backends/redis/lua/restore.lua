-- Messages are put into a queue as they stood elsewhere. Touches c m s z o d g y t u p h j k b a x i e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 who is named by further events, 5 rows, then id, record without a seq, body, reason and name of the
-- state of each. A row: flags (1 dedup, 2 wants a second event, 4 wants the last place), due (8), due of the second
-- event (8), end of its dedup window (8), hashed dedup id (16).
-- Answers {0, time, '1' there now, '0' there before, for each}.
--: bodies flows steps time views
local ROW, ARGS = 41, 5
local q, no = open(0, 3)
if not q then return no end
local c, rows, n, answers = q.c, ARGV[5], (#ARGV - 5) / ARGS, {}
if q.again then return same_again(q, n) end
local views = open_views(OF_QUEUE, q)
if not views then return {CHANGED} end
local found, seen = {}, {}
for i = 1, n do found[i] = ARGV[1 + ARGS * i] end
local known = known_under(q, views, found)
local ids, bodies, dues, by_state = {}, {}, {}, {}
local further = {ids = {}, attempts = {}, dues = {}, reasons = {}, names = {}}
for i = 1, n do
  local r, id, rec = ROW * (i - 1) + 1, found[i], ARGV[2 + ARGS * i]
  answers[i] = '0'
  if not seen[id] and (known[id] or 6) == 6 then
    local flags, at, until_us = byte(rows, r), #ids + 1, u64(rows, r + 17)
    if flags % 2 == 1 and until_us > now then
      local hash = sub(rows, r + 25, r + 40)
      local old = call('HGET', KEYS[P], hash)
      if not old or u64(old, 1) <= now then
        call('HSET', KEYS[P], hash, sub(rows, r + 17, r + 24) .. id)
        call('ZADD', KEYS[U], until_us, hash)
      end
    end
    if known[id] then unhold(q, id) end
    local seq8, place = pack('>I8', c[SEQ] + at), sub(rec, 55, 70)
    if flags >= 4 then
      place = last_place(q, c[SEQ] + at, sub(rec, 69, 70))
    elseif u64(place, 1) <= now then
      c[ORDER] = math.max(c[ORDER], u64(place, 1))
    end
    local since8 = byte(rec) == 2 and sub(rec, 39, 46) or now8
    rec = sub(rec, 1, 6) .. since8 .. sub(rec, 15, 30) .. seq8 .. sub(rec, 39, 54) .. place .. sub(rec, 71)
      .. entry_for(seq8, #ARGV[3 + ARGS * i])
    ids[at], bodies[2 * at - 1], bodies[2 * at] = id, id, ARGV[3 + ARGS * i]
    dues[at] = byte(rec) == 1 and sub(rows, r + 1, r + 8) or now8
    local list = by_state[byte(rec)] or {ids = {}, recs = {}}
    by_state[byte(rec)] = list
    list.ids[#list.ids + 1], list.recs[#list.recs + 1] = id, rec
    if flags % 4 >= 2 then
      local k = #further.ids + 1
      further.ids[k], further.attempts[k], further.dues[k] = id, sub(rec, 3, 6), sub(rows, r + 9, r + 16)
      further.reasons[k], further.names[k] = ARGV[4 + ARGS * i], ARGV[5 + ARGS * i]
    end
    answers[i], seen[id] = '1', true
  end
end
if #ids > 0 then
  put_bodies(0, bodies, 1, #ids, c[SEQ])
  for state, list in pairs(by_state) do
    if state == 2 then enter_ready(q, list.ids, list.recs, true) else enter(q, state, list.ids, list.recs) end
  end
  c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + #ids
  record(q, 1, #ids, concat(ids), 0, column(dues, 8))
  if #further.ids > 0 then
    record(q, 15, #further.ids, concat(further.ids), column(further.attempts, 4), column(further.dues, 8), ARGV[4],
      further.reasons, further.names)
  end
  rate(q, 'e', #ids)
  for state, list in pairs(#views > 0 and by_state or {}) do
    if state < 3 then fan_out(views, 0, list.ids, list.recs) end
  end
  remember_call(q, unusual(concat(answers)))
end
if q.events > 0 then close(q) tell(q) end
close_views(views)
return {DONE_NOW, now, concat(answers)}
