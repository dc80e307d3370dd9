-- A page of the messages of one state, in index order. Touches c m s z o d l g y t h j k b a e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 state, 5 most; ready: 6 offset, then pairs of bounds; else 6 score and 7 id to go on behind.
-- Answers {0, time, positions, records, bodies (of large ones only the first)}; {1} if time has more to do first.
--: bodies flows steps time
local INDEX = {[1] = D, [3] = L, [4] = G, [5] = Y}
local q, no = open(0, 3)
if not q then return no end
local more = tick(q)
if q.ticked then close(q) end
if more then return {MORE} end
local state, most, ids, positions = tonumber(ARGV[4]), tonumber(ARGV[5]), {}, {}
if state == 2 and #ARGV == 6 then
  local offset = tonumber(ARGV[6])
  positions = call('ZRANGE', KEYS[Z], offset, offset + most - 1)
elseif state == 2 then
  for i = 7, #ARGV, 2 do
    if #positions < most then
      for _, one in ipairs(call('ZRANGEBYLEX', KEYS[Z], ARGV[i], ARGV[i + 1], 'LIMIT', 0, most - #positions)) do
        positions[#positions + 1] = one
      end
    end
  end
else
  -- Behind the one at (score, id), which may be gone: found by halves among those of its score.
  local index, from = KEYS[INDEX[state]], 0
  if ARGV[6] ~= '' then
    local low = call('ZCOUNT', index, '-inf', '(' .. ARGV[6])
    local high = low + call('ZCOUNT', index, ARGV[6], ARGV[6])
    while low < high do
      local middle = math.floor((low + high) / 2)
      if call('ZRANGE', index, middle, middle)[1] <= ARGV[7] then low = middle + 1 else high = middle end
    end
    from = low
  end
  local rows = call('ZRANGE', index, from, from + most - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do positions[#positions + 1] = rows[i + 1] .. ' ' .. rows[i] end
end
for i, one in ipairs(positions) do ids[i] = sub(one, -16) end
if #ids == 0 then return {DONE_NOW, now, {}, {}, {}} end
local recs = call('HMGET', KEYS[S], unpack(ids))
return {DONE_NOW, now, positions, recs, bodies_of(ids, recs)}
