-- Hand out up to so many ready messages. Touches c m s z o d l t h j b k x i e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 most, 5 lease in microseconds, 6 consumer.
-- Answers {0, time, first seq, ids, alike, bodies}; alike are those with the same attempts and times, one behind the
-- other: how many came before them (4), attempts (4), when they expire, became visible and were enqueued (8 each). Of
-- large bodies only the first. With nothing handed out {0, time, when something falls due}; {1} if time has more to do
-- first; {2, time, ids, records} of ended leases.
--: bodies flows steps time
local ENDED, SLICE_ENDED, GHOSTS = 2, 500, 256
local char, find = string.char, string.find
local q, no = open(0, 3)
if not q then return no end
local c = q.c
-- Sent again: the same leases, if all of them are still held. Their ids are in the frame that the first time wrote.
if q.again then
  local frame_id, from, first, n = unpack(cmsgpack.unpack(q.again))
  local frame = call('XRANGE', KEYS[J], frame_id, frame_id)[1]
  local joined, ids = frame and sub(frame[2][2], from, from + 16 * n - 1) or '', {}
  for i = 1, #joined / 16 do ids[i] = sub(joined, 16 * i - 15, 16 * i) end
  local alike, began, recs = {}, now, #ids == n and call('HMGET', KEYS[S], unpack(ids)) or {}
  for i, rec in ipairs(recs) do
    if not rec or byte(rec) ~= 3 or u64(rec, 31) ~= first + i - 1 or u64(rec, 15) <= now then break end
    began, alike[i] = u64(rec, 7), pack('>I4', i - 1) .. sub(rec, 3, 6) .. sub(rec, 23, 30) .. sub(rec, 39, 54)
  end
  if #alike == n then
    return {DONE_NOW, began, string.format('%.0f', first), joined, concat(alike), bodies_of(ids, recs)}
  end
  if c[SETTINGS] ~= tonumber(ARGV[3]) then return {CHANGED} end
end
if tick(q) then close(q) return {MORE} end
local earliest = tonumber(call('ZRANGE', KEYS[L], 0, 0, 'WITHSCORES')[2] or math.huge)
if earliest <= now then
  local ids, recs, n = due(q, L, SLICE_ENDED)
  if q.ticked then close(q) end
  if n > #ids then return {MORE} end
  return {ENDED, now, ids, recs}
end
local wanted = tonumber(ARGV[4])
if c[MAX_LEASED] > 0 then wanted = math.min(wanted, c[MAX_LEASED] - c[LEASED]) end

local taken, limit, flying, exhausted = {}, c[PER_KEY], {}, {}

local function room(key)
  if limit == 0 then return math.huge end
  if not flying[key] then flying[key] = in_flight(q, key) end
  return limit - flying[key]
end

-- The lanes of a level, lowest tag first.
local function push(heap, flow)
  local i = #heap + 1
  while i > 1 do
    local up = math.floor(i / 2)
    if heap[up].tag <= flow.tag then break end
    heap[i] = heap[up]
    i = up
  end
  heap[i] = flow
end
local function pop(heap)
  local first, last, n = heap[1], heap[#heap], #heap - 1
  heap[n + 1] = nil
  if n == 0 then return first end
  local i = 1
  while true do
    local down = 2 * i
    if down > n then break end
    if down < n and heap[down + 1].tag < heap[down].tag then down = down + 1 end
    if heap[down].tag >= last.tag then break end
    heap[i] = heap[down]
    i = down
  end
  heap[i] = last
  return first
end

-- The next of a flow, read some at a time: one more than is likely to be taken, to know what comes then.
local function read(flow, n)
  local from, to = between(flow.lane)
  if flow.last then from = '(' .. flow.last end
  flow.some, flow.at = call('ZRANGEBYLEX', KEYS[Z], from, to, 'LIMIT', 0, n), 1
  flow.ended = #flow.some < n
end

-- The only lane of a level: whose turn it is needs no deciding.
local function serve_one(level, count, l, tag)
  local from, to = between(l)
  local some = call('ZRANGEBYLEX', KEYS[Z], from, to, 'LIMIT', 0, count + 1)
  local n, at, begun = math.min(count, #some), #taken, tag
  if n == 0 then
    call('ZREM', KEYS[F + level], l)
    return 0
  end
  for i = 1, n do
    local high, low = byte(some[i], -18, -17)
    taken[at + i], begun = some[i], tag
    tag = tag + 1 / (high * 256 + low)
  end
  c[TAG + level] = math.max(c[TAG + level], begun)
  c[READY + level] = c[READY + level] - n
  call('ZREMRANGEBYLEX', KEYS[Z], '[' .. some[1], '[' .. some[n])
  local head = some[n + 1]
  if head then
    call('ZADD', KEYS[O], u64(head, #head - 31), l)
    call('ZADD', KEYS[F + level], tag, l)
  else
    c[FLOWS + level] = c[FLOWS + level] - call('ZREM', KEYS[O], l)
    rest(q, level)
  end
  return n
end

-- Serve up to `count` from a level, by fair queueing; how many it were. Its time is the tag served last.
local function serve(level, count)
  local f, heap, touched, ghosts = KEYS[F + level], {}, {}, {}
  local listed = call('ZRANGE', f, 0, count > 1 and count - 1 or 1, 'WITHSCORES')
  if #listed == 2 and limit == 0 then return serve_one(level, count, listed[1], tonumber(listed[2])) end
  local flows = math.min(#listed / 2, count)
  for i = 1, flows do heap[i] = {lane = listed[2 * i - 1], tag = tonumber(listed[2 * i]), n = 0} end
  local highest = flows == count and heap[flows].tag or math.huge
  local share = flows == 1 and count + 1 or math.min(count, math.ceil(2 * count / math.max(flows, 1))) + 1
  local done = 0
  while done < count and #heap > 0 do
    local flow = pop(heap)
    if #ghosts > 0 and flow.tag > highest then break end
    local key = sub(flow.lane, 4)
    if not flow.some then read(flow, share) end
    if #flow.some == 0 then
      ghosts[#ghosts + 1] = flow.lane
    elseif room(key) > 0 then
      if flow.n == 0 then touched[#touched + 1] = flow end
      local more = true
      while more do
        local member = flow.some[flow.at]
        done = done + 1
        taken[#taken + 1] = member
        flow.n, flow.at, flow.last = flow.n + 1, flow.at + 1, member
        if limit > 0 then flying[key] = flying[key] + 1 end
        c[TAG + level] = math.max(c[TAG + level], flow.tag)
        local size = #member
        flow.tag = flow.tag + 1 / (byte(member, size - 17) * 256 + byte(member, size - 16))
        if not flow.some[flow.at] and not flow.ended then read(flow, share) end
        more = flow.some[flow.at] and done < count and #heap == 0 and room(key) > 0
      end
      if flow.some[flow.at] and room(key) > 0 then push(heap, flow) end
    end
  end
  if #ghosts > 0 then call('ZREM', f, unpack(ghosts)) end
  if done == 0 then return #ghosts > 0 and flows == count and -1 or 0 end
  -- At once: the same level may be served again in this call.
  call('ZREM', KEYS[Z], unpack(taken, #taken - done + 1))
  c[READY + level] = c[READY + level] - done
  local tags, heads, empty = {}, {}, {}
  for _, flow in ipairs(touched) do
    local head = flow.some[flow.at]
    if head then
      heads[#heads + 1] = u64(head, #head - 31)
      heads[#heads + 1] = flow.lane
    else
      empty[#empty + 1] = flow.lane
    end
    tags[#tags + 1] = flow.tag
    tags[#tags + 1] = flow.lane
  end
  if #heads > 0 then add_many(KEYS[O], heads) end
  if #empty > 0 then c[FLOWS + level] = c[FLOWS + level] - call('ZREM', KEYS[O], unpack(empty)) end
  if c[READY + level] == 0 then
    rest(q, level)
  else
    add_many(f, tags)
    -- A lane without messages stays for a while with its tag: who comes and goes must not overtake. Not too many.
    if #empty > 0 and call('ZCARD', f) - c[FLOWS + level] > GHOSTS then call('ZREM', f, unpack(empty)) end
  end
  return done
end

-- The top level that has work, and how much of it, so that every other still gets its turn in time.
local function next_level(count)
  local active = {}
  for level = 0, 9 do
    if c[READY + level] > 0 and not exhausted[level] then active[#active + 1] = level end
  end
  if #active < 2 then return active[1], count, active end
  local starving = {unpack(active, 2)}
  table.sort(starving, function(a, b)
    if c[WAITED + a] ~= c[WAITED + b] then return c[WAITED + a] > c[WAITED + b] end
    return a < b
  end)
  local slack = math.huge
  for before, level in ipairs(starving) do slack = math.min(slack, 20 - c[WAITED + level] - before) end
  if slack > 0 then return active[1], math.min(count, slack), active end
  return starving[1], 1, active
end

while #taken < wanted do
  local level, count, active = next_level(wanted - #taken)
  if not level then break end
  local done = serve(level, count)
  if done == 0 then exhausted[level] = true end
  if done > 0 and #active > 1 then
    for other = 0, 9 do c[WAITED + other] = (other == level or c[READY + other] == 0) and 0 or c[WAITED + other] + done end
  end
end

local n = #taken
if n == 0 then
  if q.ticked then close(q) end
  local soon = math.min(earliest, next_delay(q))
  return {DONE_NOW, now, string.format('%.0f', math.min(soon, 9e15))}
end

local ids, lease_end, consumer = {}, now + tonumber(ARGV[5]), ARGV[6]
for i = 1, n do ids[i] = sub(taken[i], -16) end
local recs = call('HMGET', KEYS[S], unpack(ids))
for i = 1, n do
  if not recs[i] or #recs[i] < 79 or byte(recs[i]) ~= 2 then
    -- A row that leads to nothing ready has left the line with the others; these are handed out all the same.
    local sound = {{}, {}, {}}
    for k = 1, n do
      if recs[k] and #recs[k] >= 79 and byte(recs[k]) == 2 then
        local to = #sound[1] + 1
        sound[1][to], sound[2][to], sound[3][to] = taken[k], ids[k], recs[k]
      end
    end
    taken, ids, recs = unpack(sound)
    break
  end
end
n = #ids
if n == 0 then close(q) return {MORE} end
-- What messages share that came together is made once: states, flags, attempts, times. To look whether a record begins
-- as the last one did costs less than to take its beginning out.
local attempts, alike, states, ends, ttl = {}, {}, {}, {}, {}
local seq, name, end_text = c[SEQ], pack('>I2', #consumer) .. consumer, string.format('%.0f', lease_end)
local since_until, seq7 = now8 .. pack('>I8', lease_end), nil
local begins, came_at, start, attempt, expires8
for i = 1, n do
  local rec, id, low = recs[i], ids[i], (seq + i) % 256
  local is_new = not begins or find(rec, begins, 1, true) ~= 1
  if low == 0 or not seq7 then seq7, is_new = sub(pack('>I8', seq + i), 1, 7), true end
  if is_new then
    begins, expires8, attempt = sub(rec, 1, 30), sub(rec, 23, 30), pack('>I4', unpacked('>I4', rec, 3) + 1)
    start = '\3' .. sub(rec, 2, 2) .. attempt .. since_until .. expires8 .. seq7
  end
  if is_new or find(rec, came_at, 39, true) ~= 39 then
    came_at = sub(rec, 39, 54)
    alike[#alike + 1] = pack('>I4', i - 1) .. attempt .. expires8 .. came_at
  end
  attempts[i] = attempt
  if expires8 ~= zero8 then ttl[#ttl + 1] = id end
  ends[2 * i - 1], ends[2 * i], states[2 * i - 1] = end_text, id, id
  if consumer == '' then
    states[2 * i] = start .. char(low) .. sub(rec, 39)
  else
    local at = #taken[i] + 39
    states[2 * i] = start .. char(low) .. sub(rec, 39, at - 1) .. name .. sub(rec, at + 2)
  end
end
local bodies = claim(ids, recs, consumer, attempts)
keep(q, ids, recs)
call('HSET', KEYS[S], unpack(states))
add_many(KEYS[L], ends)
if #ttl > 0 then call('ZREM', KEYS[T], unpack(ttl)) end
if limit > 0 then
  -- Of what is handed out alone: a dropped row is never settled, and its key would stay full.
  local served_keys = {}
  for _, member in ipairs(taken) do add(served_keys, sub(member, 4, -33), 1) end
  for key, count in pairs(served_keys) do fly(q, key, count) end
end
c[LEASED] = c[LEASED] + n
local joined = concat(ids)
local from = 61 + #concat(q.runs) + 38 + 1
record(q, 3, n, joined, column(attempts, 4), lease_end, consumer)
remember_call(q, cmsgpack.pack({string.format('%.0f-0', c[SEQ]), from, seq + 1, n}))
close(q)
if lease_end < earliest then tell(q) end
return {DONE_NOW, now, string.format('%.0f', seq + 1), joined, concat(alike), bodies}
