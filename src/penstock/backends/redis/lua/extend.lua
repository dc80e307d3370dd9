-- These leases end later, or sooner. Touches c s l j e n of one queue.
-- ARGV: 3 settings, 4 lease in microseconds, 5 tokens (8 each), then the ids, each once.
-- Answers {0, time, '1' or '0' (stale) for each}.
local q, no = open(0, 3)
if not q then return no end
local c, tokens, n = q.c, ARGV[5], #ARGV - 5
local until_us = now + tonumber(ARGV[4])
local until8, recs = pack('>I8', until_us), call('HMGET', KEYS[S], unpack(ARGV, 6))
local ids, held, states, ends, attempts, consumers, answers = {}, {}, {}, {}, {}, {}, {}
for i = 1, n do
  local rec = recs[i]
  answers[i] = '0'
  if rec and byte(rec) == 3 and sub(rec, 31, 38) == sub(tokens, 8 * i - 7, 8 * i) then
    local at = #ids + 1
    ids[at], held[at], attempts[at], consumers[at], answers[i] = ARGV[5 + i], rec, sub(rec, 3, 6), consumer_of(rec), '1'
    states[2 * at - 1], states[2 * at] = ARGV[5 + i], sub(rec, 1, 14) .. until8 .. sub(rec, 23)
    ends[2 * at - 1], ends[2 * at] = until_us, ARGV[5 + i]
  end
end
if #ids > 0 then
  local earliest = tonumber(call('ZRANGE', KEYS[L], 0, 0, 'WITHSCORES')[2] or math.huge)
  go_on_when_full(S)
  keep(q, ids, held)
  call('HSET', KEYS[S], unpack(states))
  add_many(KEYS[L], ends)
  record(q, 4, #ids, concat(ids), column(attempts, 4), until_us, consumers)
  close(q)
  if until_us < earliest then tell(q) end
end
return {DONE_NOW, now, concat(answers)}
