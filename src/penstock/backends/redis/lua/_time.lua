-- What time does to waiting messages: delays pass and messages expire, a slice at a time.
local SLICE = 500

-- The states whose messages stand in an index.
local AT_HOME = {[T] = {[1] = true, [2] = true}, [D] = {[1] = true}, [L] = {[3] = true}, [G] = {[4] = true}, [Y] = {[5] = true}}

-- What an index has due, and their records; a row that leads to nothing, or to a message in another state, is
-- dropped, or it would stop the others; a lease that ends later than its row says is put where it belongs. Up to now, or
-- between two scores.
local function due(q, key, most, from, to)
  local index, states = KEYS[q.at + key], KEYS[q.at + S]
  local ids = call('ZRANGEBYSCORE', index, from or '-inf', to or now, 'LIMIT', 0, most)
  if #ids == 0 then return ids, ids, 0 end
  local recs, sound, found = call('HMGET', states, unpack(ids)), {}, {}
  for i, rec in ipairs(recs) do
    if not rec or #rec < 79 or not AT_HOME[key][byte(rec)] then
      call('ZREM', index, ids[i])
    elseif key == L and u64(rec, 15) > now then
      call('ZADD', index, u64(rec, 15), ids[i])
    else
      sound[#sound + 1], found[#found + 1] = ids[i], rec
    end
  end
  return sound, found, #ids
end

-- These waiting messages are past their time to live.
local function expire(q, ids, recs)
  leave(q, ids, recs)
  forget(q, ids, recs, q.c[SEQ] + 1)
  record(q, 11, #ids, concat(ids), 0, 0)
end

-- What there is under these ids, in a queue's own line or that of any further group: id -> state, nil for nothing, 6 for
-- what is only held. What is over, but was not swept yet, goes first: its id is free.
local function known_under(q, views, ids)
  local known = {}
  for _, line in ipairs(#ids > 0 and {q, unpack(views)} or {}) do
    local seen = {}
    for i, rec in ipairs(call('HMGET', KEYS[line.at + S], unpack(ids))) do
      local id = ids[i]
      if rec and not seen[id] then
        seen[id] = true
        if #rec >= 79 and byte(rec) < 3 and u64(rec, 23) > 0 and u64(rec, 23) <= now then
          expire(line, {id}, {rec})
          rec = call('HGET', KEYS[line.at + S], id)
        end
        -- What a further line holds is let go of where it comes again: the queue's own is the caller's to see.
        local state = rec and byte(rec)
        if state and (line == q or state ~= 6) and (known[id] or 6) == 6 then known[id] = state end
      end
    end
  end
  return known
end

-- The last score in line that is due by what the queue's delay is now: without one all are, whatever the clock says.
local function last_due(q) return delay_of(q.c) == 0 and '(+inf' or IN_LINE + now - delay_of(q.c) end

-- A slice of those in line that are due, or of those with this score; how many rows it were.
local function end_line(q, score)
  local ids, recs, n = due(q, D, SLICE, score or IN_LINE, score or last_due(q))
  if #ids > 0 then
    leave(q, ids, recs)
    for i, rec in ipairs(recs) do
      local visible8 = pack('>I8', math.min(now, line_due(q.c, u64(rec, 15))))
      recs[i] = turned(rec, 2, nil, zero8, nil, sub(rec, 31, 38), visible8)
    end
    enter_ready(q, ids, recs, true)
    q.ticked = true
  end
  return n
end

-- Up to a slice of each; true if there may be more. Nothing is written where nothing is due.
local function tick(q)
  local ids, recs, n = due(q, T, SLICE)
  local more = n == SLICE
  if #ids > 0 then
    expire(q, ids, recs)
    q.ticked = true
  end
  if q.c[DELAYED] == 0 then return more end
  ids, recs, n = due(q, D, SLICE)
  if #ids > 0 then
    leave(q, ids, recs)
    for i, rec in ipairs(recs) do recs[i] = turned(rec, 2, nil, zero8, nil, sub(rec, 31, 38), sub(rec, 15, 22)) end
    enter_ready(q, ids, recs, true)
    q.ticked = true
  end
  more = more or n == SLICE
  if q.c[FIFO] == 0 then return more end
  return end_line(q) == SLICE or more
end

-- When the next delay passes.
local function next_delay(q)
  local own = tonumber(call('ZRANGE', KEYS[q.at + D], 0, 0, 'WITHSCORES')[2] or math.huge)
  local line = q.c[FIFO] == 1 and call('ZRANGEBYSCORE', KEYS[q.at + D], IN_LINE, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if line and delay_of(q.c) == 0 then return now end
  return math.min(own, line and line_due(q.c, tonumber(line)) or math.huge)
end
