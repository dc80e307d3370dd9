-- A message that is redriven, and that the queue's own line has: it is new to the lines that have it no more, as the own
-- line has it. False if there is none.
local function give_again(views, q, id, expires8)
  local rec, n = call('HGET', KEYS[q.at + S], id), 0
  if byte(rec) == 7 then rec = sub(rec, 18) end
  local function fresh(state, until8, visible8, place)
    return state .. '\0\0\0\0\0' .. now8 .. until8 .. expires8 .. zero8 .. visible8 .. sub(rec, 47, 54) .. place
      .. sub(rec, 71, after_lane(rec) - 1) .. '\0\0\0\0\0\0' .. entry_of(rec)
  end
  for _, v in ipairs(views) do
    local theirs = call('HGET', KEYS[v.at + S], id)
    if theirs and byte(theirs) == 6 then unhold(v, id) theirs = nil end
    if not theirs then
      if call('EXISTS', KEYS[v.at + GIVEN]) == 1 then call('HSET', KEYS[v.at + GIVEN], id, '') end
      local order, delay, place = math.max(v.c[ORDER], now), delay_of(v.c), sub(rec, 55, 70)
      if delay > 0 then
        place = pack('>I8', order) .. sub(place, 9)
        join_line(v, {id}, {fresh('\1', line8(order), pack('>I8', order + delay), place)}, order + delay)
      else
        join_line(v, {id}, {fresh('\2', zero8, now8, place)}, now)
      end
      n = n + 1
    end
  end
  share(q.at, {rec}, n)
  return n > 0
end
