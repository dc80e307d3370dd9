-- Numbers of lanes that have ready messages, some at a time. Touches c m s z o d t h j k b a e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 how many to pass over, 5 most.
-- Answers {0, time, {lane, depth, head, in flight} of each}; {1} if time has more to do first.
--: bodies flows steps time
local q, no = open(0, 3)
if not q then return no end
local more = tick(q)
if q.ticked then close(q) end
if more then return {MORE} end
local from, out = tonumber(ARGV[4]), {}
for _, l in ipairs(call('ZRANGE', KEYS[O], from, from + tonumber(ARGV[5]) - 1)) do
  local low, high = between(l)
  out[#out + 1] = l
  out[#out + 1] = call('ZLEXCOUNT', KEYS[Z], low, high)
  out[#out + 1] = call('ZRANGEBYLEX', KEYS[Z], low, high, 'LIMIT', 0, 1)[1] or ''
  out[#out + 1] = q.c[PER_KEY] > 0 and in_flight(q, sub(l, 4)) or -1
end
return {DONE_NOW, now, out}
