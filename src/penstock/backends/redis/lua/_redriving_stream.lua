-- A message that is redriven, and that the queue's own line has: it is new to the lines that have it no more, as the own
-- line has it. False if there is none.
local function give_again(views, q, id, expires8)
  local rec, n = call('HGET', KEYS[q.at + S], id), 0
  if byte(rec) == 7 then rec = sub(rec, 18) end
  local fresh = '\2\0\0\0\0\0' .. now8 .. zero8 .. expires8 .. zero8 .. now8 .. sub(rec, 47, after_lane(rec) - 1)
    .. '\0\0\0\0\0\0' .. entry_of(rec)
  for _, v in ipairs(views) do
    local theirs = call('HGET', KEYS[v.at + S], id)
    if theirs and byte(theirs) == 6 then unhold(v, id) theirs = nil end
    if not theirs then
      if call('EXISTS', KEYS[v.at + GIVEN]) == 1 then call('HSET', KEYS[v.at + GIVEN], id, '') end
      join_line(v, {id}, {fresh})
      n = n + 1
    end
  end
  share(q.at, {rec}, n)
  return n > 0
end
