-- Candidates for a redrive: dead messages, then those that were buried here. Touches c m s y a of one queue.
--: bodies
-- ARGV: 3 settings, 4 'y' or 'a', 5 how many to pass over, 6 most. Answers {0, time, ids, records, bodies, last seq}.
local q, no = open(0, 3)
if not q then return no end
local index, from = KEYS[ARGV[4] == 'y' and Y or A], tonumber(ARGV[5])
local ids = call('ZRANGE', index, from, from + tonumber(ARGV[6]) - 1)
local seq = string.format('%.0f', q.c[SEQ])
if #ids == 0 then return {DONE_NOW, now, {}, {}, {}, seq} end
local recs = call('HMGET', KEYS[S], unpack(ids))
return {DONE_NOW, now, ids, recs, bodies_of(ids, recs), seq}
