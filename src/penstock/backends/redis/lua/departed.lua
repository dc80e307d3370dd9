-- A transfer is over for the queue that it started from: what arrived is removed, the rest is put back.
-- Touches c m s z o d l y t h j b k a x i v f0-f9 of one queue.
-- ARGV: 3 settings, 4 transfer, 5 kind of event (8 dead, 9 redriven, 10 moved), 6 target, 7 '1' arrived or another answer
-- for each, then id and reason of each. Answers {0, time}. What became of them is remembered for a minute, for whoever
-- began it and has heard nothing since.
--: bodies flows steps leaving
local q, no = open(0, 3)
if not q then return no end
local c, transfer, kind = q.c, ARGV[4], tonumber(ARGV[5])
if call('HEXISTS', KEYS[V], transfer) == 0 then return {DONE_NOW, now} end
local gone, gone_recs, attempts, reasons, back, back_recs = {}, {}, {}, {}, {}, {}
for i = 1, #ARGV[7] do
  local id = ARGV[6 + 2 * i]
  local rec = of_transfer(call('HGET', KEYS[S], id), transfer)
  if rec and sub(ARGV[7], i, i) == '1' then
    local at = #gone + 1
    gone[at], gone_recs[at], attempts[at], reasons[at] = id, rec, sub(rec, 3, 6), ARGV[7 + 2 * i]
    count_leaving(c, byte(rec), -1)
  elseif rec then
    back[#back + 1], back_recs[#back_recs + 1] = id, rec
  end
end
if #gone > 0 then
  forget(q, gone, gone_recs, c[SEQ] + 1)
  record(q, kind, #gone, concat(gone), kind == 8 and column(attempts, 4) or 0, 0, '', reasons, ARGV[6])
  if kind == 8 then
    c[FAILED_TOTAL] = c[FAILED_TOTAL] + #gone
    rate(q, 'f', #gone)
  end
end
if #back > 0 then put_back(q, back, back_recs) end
call('HDEL', KEYS[V], transfer)
call('ZADD', KEYS[I], now, transfer, now, transfer .. ARGV[7])
close(q)
tell(q)
return {DONE_NOW, now}
