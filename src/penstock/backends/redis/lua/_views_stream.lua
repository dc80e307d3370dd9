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

-- These records, new in a line: with seqs and places of its own. `due` as the event has it.
local function join_line(v, ids, recs, due, earlier)
  local c, ready, delayed = v.c, {ids = {}, recs = {}}, {ids = {}, recs = {}}
  local order = math.max(c[ORDER], now)
  for i, rec in ipairs(recs) do
    local list, place = ready, sub(rec, 55, 70)
    if byte(rec) == 1 then
      list = delayed
      if is_in_line(rec) then c[ORDER] = math.max(c[ORDER], u64(place, 1)) end
    elseif not earlier then place = pack('>I8', order) .. sub(place, 9)
    end
    list.ids[#list.ids + 1] = ids[i]
    list.recs[#list.recs + 1] = sub(rec, 1, 30) .. pack('>I8', c[SEQ] + i) .. sub(rec, 39, 54) .. place .. sub(rec, 71)
  end
  if #ready.ids > 0 then
    if not earlier then c[ORDER] = order end
    enter_ready(v, ready.ids, ready.recs, earlier)
  end
  if #delayed.ids > 0 then enter(v, 1, delayed.ids, delayed.recs) end
  c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + #ids
  record(v, 1, #ids, concat(ids), 0, due)
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
    local new, of_new, dues = {}, {}, {}
    for i, rec in ipairs(call('HMGET', KEYS[v.at + S], unpack(ids))) do
      if rec and byte(rec) == 6 then unhold(v, ids[i]) rec = false end
      if not rec then
        new[#new + 1], of_new[#of_new + 1], dues[#dues + 1] = ids[i], recs[i], sub(recs[i], 39, 46)
        counts[i] = counts[i] + 1
      end
    end
    if #new > 0 then join_line(v, new, of_new, column(dues, 8)) end
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
