-- Lines of further groups: each has its own indexes, counters, records and journal, and all share entries and dedup ids.
-- Their keys follow those of the queue, as many as there are lines.

-- Those behind `at`; nil where one is not as the queue is, because it is being repaired.
local function open_views(at, q)
  local views = {}
  for start = at, #KEYS - OF_QUEUE, OF_QUEUE do
    local raw = call('GET', KEYS[start + C])
    local c = raw and cmsgpack.unpack(raw)
    if not c or c[SETTINGS] ~= q.c[SETTINGS] then return nil end
    views[#views + 1] = {at = start, c = c, runs = {}, events = 0}
  end
  return views
end

-- These records, new in a line: with seqs and places of its own, and waiting if this line does. Those that were in the
-- queue before, or in another store, come with what they have.
local function join_line(v, ids, recs, earlier)
  local c, ready, delayed, dues = v.c, {ids = {}, recs = {}}, {ids = {}, recs = {}}, {}
  local order, lined_up = math.max(c[ORDER], now), not earlier and lines_up(v)
  for i, rec in ipairs(recs) do
    local list, place, visible8 = ready, sub(rec, 55, 70), sub(rec, 39, 46)
    local state, until8, in_line = byte(rec), sub(rec, 15, 22), is_in_line(rec)
    if not earlier and (state == 2 or in_line and u64(until8, 1) >= IN_LINE + now) then
      local is_new = sub(rec, 7, 14) == now8
      -- Behind what was in the queue before this line began, too, whatever the clock says.
      if is_new then order = math.max(order, u64(place, 1)) end
      place, c[ORDER] = pack('>I8', order) .. sub(place, 9), order
      if lined_up and is_new then
        state, until8, visible8 = 1, into_line(v)
      elseif in_line then
        state, until8, visible8 = 2, zero8, now8
      end
    elseif in_line then
      c[ORDER] = math.max(c[ORDER], u64(place, 1))
    end
    if state == 1 then list = delayed end
    list.ids[#list.ids + 1], dues[i] = ids[i], visible8
    list.recs[#list.recs + 1] = string.char(state) .. sub(rec, 2, 14) .. until8 .. sub(rec, 23, 30) .. pack('>I8', c[SEQ] + i) .. visible8
      .. sub(rec, 47, 54) .. place .. sub(rec, 71)
  end
  if #ready.ids > 0 then
    enter_ready(v, ready.ids, ready.recs, earlier)
  end
  if #delayed.ids > 0 then enter(v, 1, delayed.ids, delayed.recs) end
  c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + #ids
  record(v, 1, #ids, concat(ids), 0, column(dues, 8))
  rate(v, 'e', #ids)
end

local function every_second(list)
  local out = {}
  for i = 2, #list, 2 do out[i / 2] = list[i] end
  return out
end

-- What was recorded in lines is written: once, at the end.
local function close_views(views)
  for _, v in ipairs(views) do
    if v.events > 0 then close(v) tell(v) end
  end
end

-- New messages of the queue behind `at` are new to all groups; an id that one still has is not new to it.
local function fan_out(views, at, ids, recs)
  local counts = {}
  for i = 1, #ids do counts[i] = 0 end
  for _, v in ipairs(views) do
    local new, of_new = {}, {}
    for i, rec in ipairs(call('HMGET', KEYS[v.at + S], unpack(ids))) do
      if rec and byte(rec) == 6 then unhold(v, ids[i]) rec = false end
      if not rec then
        new[#new + 1], of_new[#of_new + 1] = ids[i], recs[i]
        counts[i] = counts[i] + 1
      end
    end
    if #new > 0 then join_line(v, new, of_new) end
  end
  local shares = {}
  for i, rec in ipairs(recs) do
    if counts[i] > 0 then
      shares[#shares + 1] = sub(rec, -6)
      shares[#shares + 1] = counts[i] + 1
    end
  end
  if #shares > 0 then call('HSET', KEYS[at + R], unpack(shares)) end
end
