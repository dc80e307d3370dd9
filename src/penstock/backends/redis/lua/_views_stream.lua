-- Lines of further groups: each has its own indexes, counters, records and journal, and all share entries and dedup ids.
-- Their keys follow those of the queue, as many as there are lines.
local SHARED = {[M] = true, [U] = true, [P] = true, [R] = true}

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
    if byte(rec) == 1 then list = delayed elseif not earlier then place = pack('>I8', order) .. sub(place, 9) end
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
    if #new > 0 then
      join_line(v, new, of_new, column(dues, 8))
      close(v)
      tell(v)
    end
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

-- A waiting message of the queue was replaced, `was` by `rec`: so it is wherever it waits; who has it leased, or is done
-- with it, keeps what it had. A line that is being given what waits, and has not got as far, gets the new one.
local function renew_in_views(views, id, was, rec)
  local holders = 0
  for _, v in ipairs(views) do
    local c, old = v.c, call('HGET', KEYS[v.at + S], id)
    if old and #old >= 87 and byte(old) < 3 and sub(old, -6) == sub(was, -6) then
      local place = byte(old) == 2 and byte(rec) == 2 and sub(old, 55, 68) .. sub(rec, 69, 70) or sub(rec, 55, 70)
      local new = sub(rec, 1, 1) .. sub(old, 2, 6) .. sub(rec, 7, 30) .. pack('>I8', c[SEQ] + 1) .. sub(rec, 39, 46)
        .. sub(old, 47, 54) .. place .. sub(rec, 71)
      leave(v, {id}, {old})
      drop_bodies(v.at, nil, {old})
      if byte(new) == 1 then enter(v, 1, {id}, {new}) else enter_ready(v, {id}, {new}, true) end
      record(v, 2, 1, id, (unpacked('>I4', new, 3)), u64(new, 39))
      holders = holders + 1
    elseif not old then
      local boundary = tonumber(call('HGET', KEYS[v.at + GIVEN], 'b') or -1)
      if unpacked('>I6', was, #was - 5) <= boundary and call('HSETNX', KEYS[v.at + GIVEN], id, '') == 1 then
        join_line(v, {id}, {rec}, u64(rec, 39), true)
        holders = holders + 1
      end
    end
  end
  share(0, {rec}, holders)
end

-- A line begins: what came up to this seq is yet to be given to it.
local function begin_line(at, boundary) call('HSET', KEYS[at + GIVEN], 'b', string.format('%.0f', boundary)) end

local function drop_line(at, group)
  for k = 1, OF_QUEUE do
    if not SHARED[k] then call('UNLINK', KEYS[at + k]) end
  end
  redis.pcall('XGROUP', 'DESTROY', KEYS[at + M], group)
end
