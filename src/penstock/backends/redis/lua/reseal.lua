-- Bodies or records of a queue, or its departures, sealed anew: each only if it still is as it was read. Touches c m s v of one queue.
-- ARGV: 3 settings, 4 'm', 's' or 'v', then id, SHA-1 of the value as it was, and the value of each.
-- Answers {0, time, '1' or '0' (not as it was) for each}.
local q, no = open(0, 3)
if not q then return no end
local hash, answers = KEYS[ARGV[4] == 'm' and M or ARGV[4] == 's' and S or V], {}
for i = 5, #ARGV, 3 do
  local old = call('HGET', hash, ARGV[i])
  local same = old and redis.sha1hex(old) == ARGV[i + 1]
  if same then call('HSET', hash, ARGV[i], ARGV[i + 2]) end
  answers[#answers + 1] = same and '1' or '0'
end
return {DONE_NOW, now, concat(answers)}
