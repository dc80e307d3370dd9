-- Replace waiting messages. Touches c m s z o d t j b k a i e q f0-f9 of one queue, and of the lines of its further groups.
-- ARGV: 3 settings, 4 rows, then id, lane and body of each. A row: seq that the record must have (8), weight (2),
-- delay and ttl in microseconds (8 each). Answers {0, time, '1' or '0' (not as it was) for each}.
--: bodies flows steps views
local q, no = open(0, 3)
if not q then return no end
local c, rows, n, answers = q.c, ARGV[4], (#ARGV - 4) / 3, {}
if q.again then return same_again(q, n) end
local views = open_views(OF_QUEUE, q)
if not views then return {CHANGED} end
for i = 1, n do
  local r, id, l = 26 * i - 25, ARGV[2 + 3 * i], ARGV[3 + 3 * i]
  local rec = call('HGET', KEYS[S], id)
  answers[i] = '0'
  if rec and #rec >= 79 and byte(rec) < 3 and sub(rec, 31, 38) == sub(rows, r, r + 7) then
    local state, flags, delay, ttl = byte(rec), sub(rec, 2, 2), u64(rows, r + 10), u64(rows, r + 18)
    local seq8, weight, visible8 = pack('>I8', c[SEQ] + 1), sub(rows, r + 8, r + 9), pack('>I8', now + delay)
    local expires8 = ttl > 0 and pack('>I8', now + ttl) or zero8
    -- Its place stays, unless a delay begins or is cut short.
    local place, shown8 = sub(rec, 55, 68) .. weight, sub(rec, 39, 46)
    if delay > 0 then
      place, shown8 = visible8 .. sub(seq8, 3) .. weight, visible8
    elseif state == 1 then
      place, shown8 = c[FIFO] == 1 and place or last_place(q, c[SEQ] + 1, weight), now8
    end
    leave(q, {id}, {rec})
    local new = string.char(delay > 0 and 1 or 2) .. flags .. sub(rec, 3, 6) .. now8
      .. (delay > 0 and visible8 or zero8) .. expires8 .. seq8 .. shown8 .. sub(rec, 47, 54) .. place .. l
      .. '\0\0' .. sub(reason_of(rec), 1, -1 - #entry_of(rec))
      .. entry_for(seq8, #ARGV[4 + 3 * i])
    keep_body(q, id, rec)
    swap_body(0, id, rec, ARGV[4 + 3 * i], c[SEQ] + 1)
    if delay > 0 then enter(q, 1, {id}, {new}) else enter_ready(q, {id}, {new}, true) end
    record(q, 2, 1, id, (unpacked('>I4', rec, 3)), now + delay)
    if #views > 0 then renew_in_views(views, id, rec, new) end
    answers[i] = '1'
  end
end
if q.events > 0 then
  remember_call(q, unusual(concat(answers)))
  close(q)
  tell(q)
  for _, v in ipairs(views) do
    if v.events > 0 then close(v) tell(v) end
  end
end
return {DONE_NOW, now, concat(answers)}
