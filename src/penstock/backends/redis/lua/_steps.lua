-- The steps that changes are made of: out of one state, into another, and away.
local INF = '+inf'

local function add(map, l, n) map[l] = (map[l] or 0) + n end

-- A record in another state; nil keeps a field.
local function turned(rec, state, attempts4, until8, expires8, seq8, visible8, place, consumer, reason)
  local at = after_lane(rec)
  consumer = consumer or ''
  return string.char(state) .. sub(rec, 2, 2) .. (attempts4 or sub(rec, 3, 6)) .. now8 .. until8
    .. (expires8 or sub(rec, 23, 30)) .. seq8 .. (visible8 or sub(rec, 39, 46)) .. sub(rec, 47, 54)
    .. (place or sub(rec, 55, 70)) .. sub(rec, 71, at - 1)
    .. pack('>I2', #consumer) .. consumer .. (reason and reason ~= '' and pack('>I4', #reason) .. reason .. entry_of(rec) or reason_of(rec))
end

-- The body of a message is about to become another: snapshots that show the message keep it.
local function keep_body(q, id, rec)
  local live = q.c[REQUIRED] > 0 and call('HGET', KEYS[q.at + E], LIVE)
  for at = 1, live and #live or 0, 16 do
    local kept = sub(live, at, at + 7) .. id
    if call('HEXISTS', KEYS[q.at + E], kept) == 1 and call('HEXISTS', KEYS[q.at + E], 'b' .. kept) == 0 then
      local body = body_at(q.at, id, rec)
      if body then call('HSET', KEYS[q.at + E], 'b' .. kept, body) end
    end
  end
end

-- Messages leave the states they are in: index rows, counters, flows. Bodies and records stay.
local function leave(q, ids, recs)
  local c, at = q.c, q.at
  keep(q, ids, recs)
  local ready, lanes, ttl, buried, flying = {}, {}, {}, {}, {}
  local of, leased = {[1] = {}, [3] = {}, [4] = {}, [5] = {}}, {}
  for i, rec in ipairs(recs) do
    local id, state = ids[i], byte(rec)
    if state == 2 then
      local l = lane_of(rec)
      ready[#ready + 1] = l .. sub(rec, 55, 70) .. id
      add(lanes, l, 1)
    else
      local some = of[state]
      some[#some + 1] = id
      if state == 3 then leased[#leased + 1] = rec end
      if c[PER_KEY] > 0 and (state == 3 or state == 1 and c[FIFO] == 1 and not is_in_line(rec)) then
        add(flying, sub(lane_of(rec), 4), 1)
      end
    end
    if state < 3 and sub(rec, 23, 30) ~= zero8 then ttl[#ttl + 1] = id end
    if byte(rec, 2) == 1 then buried[#buried + 1] = id end
  end
  if #ready > 0 then call('ZREM', KEYS[at + Z], unpack(ready)) end
  for state, key in pairs({[1] = D, [3] = L, [4] = G, [5] = Y}) do
    local some = of[state]
    if #some > 0 then call('ZREM', KEYS[at + key], unpack(some)) end
  end
  if #leased > 0 then release(at, leased) end
  if #ttl > 0 then call('ZREM', KEYS[at + T], unpack(ttl)) end
  if #buried > 0 then call('ZREM', KEYS[at + A], unpack(buried)) end
  c[DELAYED], c[LEASED] = c[DELAYED] - #of[1], c[LEASED] - #of[3]
  c[DONE], c[DEAD] = c[DONE] - #of[4], c[DEAD] - #of[5]
  if #ready > 0 then went(q, lanes) end
  for key, n in pairs(flying) do fly(q, key, -n) end
end

-- Messages are gone by the events from `seq` on: their bodies go, unless a required cursor has yet to read so far.
local function forget(q, ids, recs, seq)
  local at = q.at
  if q.c[REQUIRED] == 0 then
    drop_bodies(at, ids, recs)
    call('HDEL', KEYS[at + S], unpack(ids))
    return
  end
  local held, gone, recs = {}, {}, call('HMGET', KEYS[at + S], unpack(ids))
  for i, id in ipairs(ids) do
    held[2 * i - 1], held[2 * i] = seq + i - 1, id
    gone[2 * i - 1] = id
    -- With its times: a body has none. One that was on its way has them behind the transfer's id.
    local rec = byte(recs[i]) == 7 and sub(recs[i], 18) or recs[i]
    gone[2 * i] = '\6\0' .. sub(turned(rec, 6, nil, zero8, nil, pack('>I8', seq + i - 1)), 3)
  end
  add_many(KEYS[at + H], held)
  call('HSET', KEYS[at + S], unpack(gone))
  q.c[HELD] = q.c[HELD] + #ids
end

-- The id of one that is gone is used again: nothing is held under it any more.
local function unhold(q, id)
  local rec = call('HGET', KEYS[q.at + S], id)
  if rec then
    keep(q, {id}, {rec})
    keep_body(q, id, rec)
  end
  if call('ZREM', KEYS[q.at + H], id) == 0 then return end
  q.c[HELD] = q.c[HELD] - 1
  if IN_STREAM then drop_bodies(q.at, {id}, {rec}) end
end

-- A dead letter of another queue that waits is known as such: a redrive looks for it.
local function mark_buried(q, ids, recs)
  local buried = {}
  for i, rec in ipairs(recs) do
    if byte(rec, 2) == 1 then buried[#buried + 1] = u64(rec, 31) buried[#buried + 1] = ids[i] end
  end
  if #buried > 0 then add_many(KEYS[q.at + A], buried) end
end

-- Messages are READY under these records, which have their places.
local function enter_ready(q, ids, recs, earlier)
  local zs, lanes, ttl, states = {}, {}, {}, {}
  for i, rec in ipairs(recs) do
    local id, l, order = ids[i], lane_of(rec), u64(rec, 55)
    zs[2 * i - 1], zs[2 * i] = '0', l .. sub(rec, 55, 70) .. id
    states[2 * i - 1], states[2 * i] = id, rec
    local x = lanes[l]
    if not x then
      lanes[l] = {1, order, sub(rec, 69, 70)}
    else
      x[1] = x[1] + 1
      if order < x[2] then x[2], x[3] = order, sub(rec, 69, 70) end
    end
    if sub(rec, 23, 30) ~= zero8 then ttl[#ttl + 1] = u64(rec, 23) ttl[#ttl + 1] = id end
  end
  add_many(KEYS[q.at + Z], zs)
  call('HSET', KEYS[q.at + S], unpack(states))
  if #ttl > 0 then add_many(KEYS[q.at + T], ttl) end
  mark_buried(q, ids, recs)
  came(q, lanes, earlier)
end

-- Counters that have it say that somebody may be in line.
local function set_delay(c, delay)
  for place = LEAVING + 1, LAST_LEAVING do c[place] = c[place] or 0 end
  c[DELAY] = delay
end

-- The same for any other state: 1 delayed, 3 leased, 4 done, 5 dead. Its index goes by the record's `until`.
local function enter(q, state, ids, recs)
  local c, due, states, ttl = q.c, {}, {}, {}
  for i, rec in ipairs(recs) do
    local time = u64(rec, 15)
    due[2 * i - 1], due[2 * i] = time > 0 and time or INF, ids[i]
    states[2 * i - 1], states[2 * i] = ids[i], rec
    if state == 1 and sub(rec, 23, 30) ~= zero8 then ttl[#ttl + 1] = u64(rec, 23) ttl[#ttl + 1] = ids[i] end
    if state == 1 and c[FIFO] == 1 then
      if time < IN_LINE then fly(q, sub(lane_of(rec), 4), 1) elseif not c[DELAY] then set_delay(c, 0) end
    end
  end
  local key, counter = D, DELAYED
  if state == 4 then key, counter = G, DONE elseif state == 5 then key, counter = Y, DEAD end
  add_many(KEYS[q.at + key], due)
  call('HSET', KEYS[q.at + S], unpack(states))
  if #ttl > 0 then add_many(KEYS[q.at + T], ttl) end
  if state == 1 then mark_buried(q, ids, recs) end
  c[counter] = c[counter] + #ids
end

-- The place at the end of the line for the event `seq`.
local function last_place(q, seq, weight2)
  local order = math.max(q.c[ORDER], now)
  q.c[ORDER] = order
  return pack('>I8', order) .. sub(pack('>I8', seq), 3) .. weight2
end

-- Since when the last of those waits that are in line; nil if none is.
local function last_in_line(q)
  if not q.c[DELAY] or q.c[DELAYED] == 0 then return nil end
  local last = call('ZREVRANGEBYSCORE', KEYS[q.at + D], '(+inf', IN_LINE, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return last and tonumber(last) - IN_LINE
end

-- Whether what comes in waits first: for the queue's delay, or behind others that still do.
local function lines_up(q) return delay_of(q.c) > 0 or last_in_line(q) ~= nil end

-- What one that comes in waits until, and when it is due: no earlier than those who are in line, whatever the clock says.
-- None of them came after the last place was given out. For all of a script's the same.
local function into_line(q)
  if not q.until8 then
    local since = math.max(now, q.c[ORDER] > now and last_in_line(q) or 0)
    q.until8, q.due8 = line8(since), pack('>I8', math.max(since + delay_of(q.c), now + 1))
  end
  return q.until8, q.due8
end
