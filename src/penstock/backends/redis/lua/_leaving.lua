-- Messages on their way from one queue of a cluster to another. Until they have arrived they are counted where they
-- were, but stand in no index: nobody is served with them. Their record is 7, the transfer's id (16), and the record
-- that it was.
local AWAY = '\7'

-- The record that a message had before this transfer; nil for one that is not part of it.
local function of_transfer(rec, id) return rec and sub(rec, 1, 17) == AWAY .. id and sub(rec, 18) or nil end

-- The ids of a transfer that is written down.
local function ids_of_departure(row)
  local size = #row >= 16 and byte(row, 15) * 256 + byte(row, 16) or 0
  local first, n, ids = 21 + size, #row >= 20 + size and unpacked('>I4', row, 17 + size) or 0, {}
  for i = 1, math.min(n, math.floor((#row - first + 1) / 16)) do ids[i] = sub(row, first + 16 * i - 16, first + 16 * i - 1) end
  return ids
end

local function count_leaving(c, state, n)
  for place = LEAVING + 1, LAST_LEAVING do c[place] = c[place] or 0 end
  c[LEAVING + state] = c[LEAVING + state] + n
end

-- Back in the state that they were in, at their old places.
local function put_back(q, ids, recs)
  local c, of = q.c, {[1] = {{}, {}}, [2] = {{}, {}}, [3] = {{}, {}}, [5] = {{}, {}}}
  for i, rec in ipairs(recs) do
    local some = of[byte(rec)]
    some[1][#some[1] + 1], some[2][#some[2] + 1] = ids[i], rec
    count_leaving(c, byte(rec), -1)
  end
  for state, some in pairs(of) do
    if #some[1] == 0 then
    elseif state == 2 then
      enter_ready(q, some[1], some[2], true)
    elseif state == 3 then
      for i, rec in ipairs(some[2]) do
        call('HSET', KEYS[q.at + S], some[1][i], rec)
        call('ZADD', KEYS[q.at + L], u64(rec, 15), some[1][i])
        claim({some[1][i]}, {rec}, consumer_of(rec), {sub(rec, 3, 6)})
        if c[PER_KEY] > 0 then fly(q, sub(lane_of(rec), 4), 1) end
      end
      mark_buried(q, some[1], some[2])
      c[LEASED] = c[LEASED] + #some[1]
    else
      enter(q, state, some[1], some[2])
    end
  end
end
