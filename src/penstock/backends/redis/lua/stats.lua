-- A queue's numbers, as time has left them. Touches c m s z o d t h j k b a x w e q f0-f9 of one queue.
-- ARGV: 3 settings. Answers {0, time, counters, order of the oldest ready one or '', rates, cursors}; {1} if time has
-- more to do first.
--: bodies flows steps time
local q, no = open(0, 3)
if not q then return no end
local more = tick(q)
if q.ticked then close(q) end
if more then return {MORE} end
return {DONE_NOW, now, call('GET', KEYS[C]), call('ZRANGE', KEYS[O], 0, 0, 'WITHSCORES')[2] or '',
  call('HGETALL', KEYS[X]), call('HGETALL', KEYS[W])}
