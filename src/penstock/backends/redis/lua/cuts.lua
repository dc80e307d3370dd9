-- Where an index can be cut into parts of one size. Reads c z d l g y h e of one queue.
-- ARGV: 3 number of the queue, 4 number of the snapshot (8), 5 state, 6 parts. Answers {0, time, the places between them}.
--: shown
local INDEX = {[1] = D, [2] = Z, [3] = L, [4] = G, [5] = Y, [6] = H}
local snapshot, _, no = shown(3)
if not snapshot then return no end
local state, parts, places = tonumber(ARGV[5]), tonumber(ARGV[6]), {}
local index = KEYS[INDEX[state]]
local size = call('ZCARD', index)
for part = 1, parts - 1 do
  local at = math.floor(size * part / parts)
  local row = call('ZRANGE', index, at, at, 'WITHSCORES')
  if row[1] then
    local key = row[2] == 'inf' and NEVER or pack('>I8', tonumber(row[2]))
    places[#places + 1] = state == 2 and row[1] or key .. row[1]
  end
end
return {DONE_NOW, now, places}
