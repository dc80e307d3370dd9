-- Replace waiting messages, and create those that only further groups have. Touches c m s z o d t h j b k a x i e q f0-f9 of
-- one queue, and of the lines of its further groups.
-- ARGV: 3 settings, 4 rows, then id, lane and body of each. A row: seq that the record must have, 0 for none (8), weight
-- (2), delay and ttl in microseconds (8 each). Answers {0, time, '1' or '0' (not as it was) for each}.
--: bodies flows steps views renewing
local q, no = open(0, 3)
if not q then return no end
local c, rows, n, answers = q.c, ARGV[4], (#ARGV - 4) / 3, {}
if q.again then return same_again(q, n) end
local views = open_views(OF_QUEUE, q)
if not views then return {CHANGED} end
for i = 1, n do
  local r, id, l = 26 * i - 25, ARGV[2 + 3 * i], ARGV[3 + 3 * i]
  local rec, seen8, flags = call('HGET', KEYS[S], id), sub(rows, r, r + 7), flags_in(views, id)
  local free = not rec or byte(rec) == 6
  answers[i] = '0'
  if flags and (free and seen8 == zero8 or rec and #rec >= 79 and byte(rec) < 3 and sub(rec, 31, 38) == seen8) then
    local delay, ttl, weight = u64(rows, r + 10), u64(rows, r + 18), sub(rows, r + 8, r + 9)
    local seq8, visible8 = pack('>I8', c[SEQ] + 1), pack('>I8', now + delay)
    local expires8 = ttl > 0 and pack('>I8', now + ttl) or zero8
    -- Its place stays, unless a delay begins or is cut short.
    local place, shown8
    local until8, waits = delay > 0 and visible8 or zero8, delay > 0
    if free and lines_up(q) then
      place, waits = last_place(q, c[SEQ] + 1, weight), true
      until8, shown8 = into_line(q)
    elseif not free and is_in_line(rec) then
      place, until8, waits = sub(rec, 55, 68) .. weight, sub(rec, 15, 22), true
      shown8 = pack('>I8', math.max(line_due(c, u64(rec, 15)), now + 1))
    elseif delay > 0 then
      place, shown8 = visible8 .. sub(seq8, 3) .. weight, visible8
    elseif free or byte(rec) == 1 and c[FIFO] == 0 then
      place, shown8 = last_place(q, c[SEQ] + 1, weight), now8
    else
      place, shown8 = sub(rec, 55, 68) .. weight, byte(rec) == 1 and now8 or sub(rec, 39, 46)
    end
    local attempts4, since8, reason = '\0\0\0\0', now8, '\0\0\0\0'
    if free then
      if rec then unhold(q, id) end
      put_bodies(0, {id, ARGV[4 + 3 * i]}, 1, 1, c[SEQ])
      c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + 1
      rate(q, 'e', 1)
    else
      flags, attempts4, since8 = sub(rec, 2, 2), sub(rec, 3, 6), sub(rec, 47, 54)
      reason = sub(reason_of(rec), 1, -1 - #entry_of(rec))
      leave(q, {id}, {rec})
      keep_body(q, id, rec)
      swap_body(0, id, rec, ARGV[4 + 3 * i], c[SEQ] + 1)
    end
    local new = string.char(waits and 1 or 2) .. flags .. attempts4 .. now8
      .. until8 .. expires8 .. seq8 .. shown8 .. since8 .. place .. l
      .. '\0\0' .. reason .. entry_for(seq8, #ARGV[4 + 3 * i])
    if waits then enter(q, 1, {id}, {new}) else enter_ready(q, {id}, {new}, true) end
    record(q, free and 1 or 2, 1, id, (unpacked('>I4', attempts4)), waits and u64(shown8, 1) or now)
    if #views > 0 then renew_in_views(views, id, new) end
    answers[i] = '1'
  end
end
if q.events > 0 then
  remember_call(q, unusual(concat(answers)))
  close(q)
  tell(q)
  close_views(views)
end
return {DONE_NOW, now, concat(answers)}
