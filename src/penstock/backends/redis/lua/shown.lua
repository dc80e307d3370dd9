-- A slice of the messages of one state, as a snapshot shows them. Reads c s z d l g y h e n of one queue.
-- ARGV: 3 number of the queue, 4 number of the snapshot (8), 5 state, 6 from, 7 to ('' for the end), 8 most. Where a
-- message stands is its row in the index: of ready ones the member, else time or seq (8) and id.
-- Answers {0, time, where to go on ('' at the end), ids, records, how many of them, the first, have changed since}; {-3} if the snapshot has ended.
--: shown
local INDEX = {[1] = D, [3] = L, [4] = G, [5] = Y, [6] = H}
local snapshot, last, no = shown(3)
if not snapshot then return no end
local state, from, to, most = tonumber(ARGV[5]), ARGV[6], ARGV[7], tonumber(ARGV[8])
local mark = snapshot .. string.char(state)

local function key_of(score) return score == 'inf' and NEVER or pack('>I8', tonumber(score)) end
local function score_of(key) return sub(key, 1, 8) == NEVER and 'inf' or string.format('%.0f', u64(key, 1)) end

-- Byte by byte, whatever the server's language is.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- How many of an index stand before a place: found by halves among those of its score.
local function rank(index, place)
  if place == '' then return 0 end
  local score = score_of(place)
  local low = call('ZCOUNT', index, '-inf', '(' .. score)
  local high = low + call('ZCOUNT', index, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(call('ZRANGE', index, middle, middle)[1], sub(place, 9)) then low = middle + 1 else high = middle end
  end
  return low
end

local places, ids = {}, {}
if state == 2 then
  places = call('ZRANGEBYLEX', KEYS[Z], from == '' and '-' or '[' .. from, to == '' and '+' or '(' .. to, 'LIMIT', 0, most)
  for i, place in ipairs(places) do ids[i] = sub(place, -16) end
else
  local index = KEYS[INDEX[state]]
  local first = rank(index, from)
  local behind = math.min(first + most, to == '' and math.huge or rank(index, to))
  local rows = behind > first and call('ZRANGE', index, first, behind - 1, 'WITHSCORES') or {}
  for i = 1, #rows, 2 do
    ids[#ids + 1] = rows[i]
    places[#places + 1] = key_of(rows[i + 1]) .. rows[i]
  end
end
local on = #ids == most and places[#places] .. '\0' or to

-- What stood in this slice when the snapshot was taken, and has changed since.
local upper = on ~= '' and '(' .. mark .. on or '(' .. snapshot .. string.char(state + 1)
local earlier = call('ZRANGEBYLEX', KEYS[Q], '[' .. mark .. from, upper, 'LIMIT', 0, most + 1)
local out, records = {}, {}
if #earlier > most then
  -- Too many at once: the slice ends before the one too many, and so do those that stand as they stood.
  on = sub(earlier[most + 1], 10)
  earlier[most + 1] = nil
end
if #earlier > 0 then
  local kept = {}
  for i, member in ipairs(earlier) do
    out[i] = sub(member, -16)
    kept[i] = snapshot .. out[i]
  end
  records = call('HMGET', KEYS[E], unpack(kept))
end
if #ids > 0 then
  local recs, kept = call('HMGET', KEYS[S], unpack(ids)), {}
  -- Mostly nothing is kept at all.
  local changed = kept
  if call('EXISTS', KEYS[Q]) == 1 then
    for i, id in ipairs(ids) do kept[i] = snapshot .. id end
    changed = call('HMGET', KEYS[E], unpack(kept))
  end
  for i, rec in ipairs(recs) do
    local inside = on == '' or not (#earlier == most) or before(places[i], on)
    if inside and not changed[i] and rec and #rec >= 79 and u64(rec, 31) <= last then
      out[#out + 1], records[#records + 1] = ids[i], rec
    end
  end
end
return {DONE_NOW, now, on, out, records, #earlier}
