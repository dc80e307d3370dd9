-- What falls due in a queue, up to so many of each kind. Touches c m s z o d l g y t u h j k b a e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 from, 5 to (a score's bounds), 6 most. Answers {0, time, for each kind ids and times}; {1} if time
-- has more to do first.
--: bodies flows steps time
local q, no = open(0, 3)
if not q then return no end
local more = tick(q)
if q.ticked then close(q) end
if more then return {MORE} end
local out = {}
for i, index in ipairs({D, L, T, G, Y, U}) do
  out[i] = call('ZRANGEBYSCORE', KEYS[index], ARGV[4], ARGV[5], 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[6]))
end
return {DONE_NOW, now, out}
