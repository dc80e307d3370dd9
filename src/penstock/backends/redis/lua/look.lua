-- Messages by their ids, as time has left them. Touches c m s z o d t h j k b a e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 '1' with bodies, then the ids. Answers {0, time, records, bodies (of large ones only the first),
-- last seq}; {1} if time has more to do first.
--: bodies flows steps time
local q, no = open(0, 3)
if not q then return no end
local more = tick(q)
if q.ticked then close(q) end
if more then return {MORE} end
local seq = string.format('%.0f', q.c[SEQ])
if #ARGV == 4 then return {DONE_NOW, now, {}, {}, seq} end
local recs = call('HMGET', KEYS[S], unpack(ARGV, 5))
return {DONE_NOW, now, recs, ARGV[4] == '1' and bodies_of({unpack(ARGV, 5)}, recs) or {}, seq}
