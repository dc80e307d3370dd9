-- Messages set out for another queue of a cluster; what is to become of them is written down beside them.
-- Touches c s z o d l y t k b a i v f0-f9 of one queue.
-- ARGV: 3 settings, 4 transfer, 5 what it is (see docs/formats.md), 6 seqs that the records must have (8 each), then the
-- ids. Answers {0, time, '1' set out or '0' not as it was, for each, records of those that set out}; what became of each
-- and no records, where it is sent again and over by now.
--: bodies flows steps leaving
local q, no = open(0, 3)
if not q then return no end
local transfer, n, answers, found = ARGV[4], #ARGV - 6, {}, {}
local recs = call('HMGET', KEYS[S], unpack(ARGV, 7))
if call('HEXISTS', KEYS[V], transfer) == 1 then
  -- Sent again.
  for i = 1, n do
    local rec = of_transfer(recs[i], transfer)
    answers[i], found[#found + 1] = rec and '1' or '0', rec
  end
  return {DONE_NOW, now, concat(answers), found}
end
local told = sub(ARGV[2], 17, 17) == '1' and remembered(0, transfer)
if told then return {DONE_NOW, now, told, {}} end
local ids, away, seen = {}, {}, {}
for i = 1, n do
  local id, rec = ARGV[6 + i], recs[i]
  local state = rec and #rec >= 79 and byte(rec) or 0
  answers[i] = '0'
  if (state == 5 or state > 0 and state < 4) and sub(rec, 31, 38) == sub(ARGV[6], 8 * i - 7, 8 * i) and not seen[id] then
    ids[#ids + 1], found[#found + 1] = id, rec
    away[#away + 1] = id
    away[#away + 1] = AWAY .. transfer .. rec
    answers[i], seen[id] = '1', true
  end
end
if #ids > 0 then
  leave(q, ids, found)
  for _, rec in ipairs(found) do count_leaving(q.c, byte(rec), 1) end
  call('HSET', KEYS[S], unpack(away))
  call('HSET', KEYS[V], transfer, now8 .. ARGV[5])
  close(q)
end
return {DONE_NOW, now, concat(answers), found}
