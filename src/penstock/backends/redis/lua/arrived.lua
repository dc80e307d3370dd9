-- A transfer is over, and the queue that it started from knows: here it is remembered for ten minutes, should someone who
-- was held up come with it again. Touches c i n of one queue. ARGV: 3 settings, 4 transfer. Answers {0, time}.
local KEPT_US = 600000000
local q, no = open(0, 3)
if not q then return no end
local transfer, row = ARGV[4], call('HGET', KEYS[N], ARGV[4])
if row then
  local answers, time = sub(row, 15, 14 + byte(row, 13) * 256 + byte(row, 14)), now + KEPT_US - CALLS_KEPT_US
  call('ZADD', KEYS[I], time, transfer, time, transfer .. answers)
  call('HDEL', KEYS[N], transfer)
end
return {DONE_NOW, now}
