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
local from, to, most = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
for i, index in ipairs({D, L, T, G, Y, U}) do
  out[i] = call('ZRANGEBYSCORE', KEYS[index], from, to, 'WITHSCORES', 'LIMIT', 0, most)
end
if q.c[FIFO] == 1 then
  -- Two lines in one: what waits for the queue's delay stands behind what waits until a time of its own.
  local ends, own, shift = tonumber((string.gsub(to, '%(', ''))) or math.huge, {}, IN_LINE - delay_of(q.c)
  for at = 1, #out[1], 2 do
    if tonumber(out[1][at + 1]) >= IN_LINE then break end
    own[at], own[at + 1] = out[1][at], out[1][at + 1]
  end
  local behind = ends == math.huge and '+inf' or '(' .. string.format('%.0f', ends + shift)
  local line = call('ZRANGEBYSCORE', KEYS[D], math.max(IN_LINE, from + shift), behind, 'WITHSCORES', 'LIMIT', 0, most)
  for at = 1, #line, 2 do
    own[#own + 1], own[#own + 2] = line[at], string.format('%.0f', tonumber(line[at + 1]) - shift)
  end
  out[1] = own
end
return {DONE_NOW, now, out}
