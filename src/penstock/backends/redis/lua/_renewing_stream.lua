-- A message that is replaced, or created where only some groups have it, in the lines of further groups.
-- The flags that a message has in lines where it waits; nil if it may not be replaced, because one has it otherwise.
local function flags_in(views, id)
  local flags = '\0'
  for _, v in ipairs(views) do
    local rec = call('HGET', KEYS[v.at + S], id)
    local state = rec and byte(rec) or 6
    if state ~= 1 and state ~= 2 and state ~= 6 then return nil end
    if state < 3 then flags = sub(rec, 2, 2) end
  end
  return flags
end

-- A message of the queue was replaced, or came, by `rec`: it is replaced wherever it waits, and new to the others. To one
-- that is being given what waits, too.
local function renew_in_views(views, id, rec)
  local fresh = sub(rec, 1, 2) .. '\0\0\0\0' .. sub(rec, 7, after_lane(rec) - 1) .. '\0\0\0\0\0\0' .. entry_of(rec)
  for _, v in ipairs(views) do
    local c, old = v.c, call('HGET', KEYS[v.at + S], id)
    if old and byte(old) == 6 then unhold(v, id) old = false end
    if old then
      local place = byte(old) == 2 and byte(rec) == 2 and sub(old, 55, 68) .. sub(rec, 69, 70) or sub(rec, 55, 70)
      local state, until8, visible8 = sub(rec, 1, 1), sub(rec, 15, 22), sub(rec, 39, 46)
      -- A line goes by what waits in it: what is in line stays there, and what is not does not come there again.
      if is_in_line(old) then
        state, until8, place = '\1', sub(old, 15, 22), sub(old, 55, 68) .. sub(rec, 69, 70)
        visible8 = pack('>I8', math.max(line_due(c, u64(until8, 1)), now + 1))
      elseif is_in_line(rec) then
        state, until8, place = '\2', zero8, sub(old, 55, 68) .. sub(rec, 69, 70)
        visible8 = byte(old) == 2 and sub(old, 39, 46) or now8
      end
      local new = state .. sub(old, 2, 6) .. sub(rec, 7, 14) .. until8 .. sub(rec, 23, 30) .. pack('>I8', c[SEQ] + 1)
        .. visible8 .. sub(old, 47, 54) .. place .. sub(rec, 71)
      leave(v, {id}, {old})
      drop_bodies(v.at, nil, {old})
      if byte(new) == 1 then enter(v, 1, {id}, {new}) else enter_ready(v, {id}, {new}, true) end
      record(v, 2, 1, id, (unpacked('>I4', new, 3)), u64(new, 39))
    else
      local joins = call('EXISTS', KEYS[v.at + GIVEN]) == 1
      if joins then call('HSET', KEYS[v.at + GIVEN], id, '') end
      join_line(v, {id}, {fresh}, joins)
    end
  end
  share(0, {rec}, #views)
end
