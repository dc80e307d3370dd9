-- Enqueue a batch. Touches c m s z o d t u p h j k a x i e q f0-f9 of one queue, and of the lines of its further groups.
-- ARGV: 3 settings, 4 count, 5 rows, 6 '1' if all are plain, 7 shapes, the shapes, then id and body of each message.
-- A shape is a lane and, in two bytes, a weight: mostly all of a batch have the same. A row: shape (2); where not all
-- are plain, flags (1 id given, 2 dedup), delay and ttl in microseconds (8 each) and the hashed dedup id (16) follow.
-- Answers {0, time} for plain ones, else {0, time, for each '' or the id that answers for it}.
--: bodies flows steps time views
local q, no = open(0, 3)
if not q then return no end
local c, n, rows, plain = q.c, tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1'
local shapes = tonumber(ARGV[7])
local first, lanes, weights = 8 + shapes, {}, {}
for i = 1, shapes do lanes[i], weights[i] = sub(ARGV[7 + i], 1, -3), sub(ARGV[7 + i], -2) end
if q.again then return {DONE_NOW, now, q.again ~= true and cmsgpack.unpack(q.again) or nil} end
-- Sent again, and not remembered: the ids tell, as long as the messages are there.
local sent_again = sub(ARGV[2], 17, 17) == '1'
if plain and sent_again and call('HEXISTS', KEYS[S], ARGV[first]) == 1 then return {DONE_NOW, now} end
local views = open_views(OF_QUEUE, q)
if not views then return {CHANGED} end
local order = math.max(c[ORDER], now)
local order8 = pack('>I8', order)
-- All of them wait: for the queue's delay, or behind those that do.
local waits = lines_up(q)
local head = '\2\0\0\0\0\0' .. now8 .. zero8
local ids, zs, ss, added = {}, {}, {}, {}

if plain and not waits then
  local seq = c[SEQ]
  local before, after, last = head .. zero8, now8 .. now8 .. order8, '\0\0\0\0\0\0'
  for i = 1, n do
    local index = shapes == 1 and 1 or byte(rows, 2 * i - 1) * 256 + byte(rows, 2 * i)
    local id, l, weight, seq8 = ARGV[first + 2 * i - 2], lanes[index], weights[index], pack('>I8', seq + i)
    local tie = sub(seq8, 3)
    ids[i] = id
    zs[2 * i - 1], zs[2 * i] = '0', l .. order8 .. tie .. weight .. id
    if IN_STREAM then last = '\0\0\0\0\0\0' .. entry_for(seq8, #ARGV[first + 2 * i - 1]) end
    ss[2 * i - 1], ss[2 * i] = id, before .. seq8 .. after .. tie .. weight .. l .. last
    local x = added[l]
    if x then x[1] = x[1] + 1 else added[l] = {1, order, weight} end
  end
  c[ORDER] = order
  put_bodies(0, ARGV, first, n, seq)
  call('HSET', KEYS[S], unpack(ss))
  add_many(KEYS[Z], zs)
  came(q, added)
  c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + n
  record(q, 1, n, concat(ids), 0, now)
  rate(q, 'e', n)
  remember_call(q)
  close(q)
  tell(q)
  if #views > 0 then fan_out(views, 0, ids, every_second(ss)) end
  close_views(views)
  return {DONE_NOW, now}
end

local function row(i)
  if plain then
    local index = shapes == 1 and 1 or byte(rows, 2 * i - 1) * 256 + byte(rows, 2 * i)
    return index, weights[index], 0, 0, 0, ''
  end
  local r = 35 * i - 34
  local index = byte(rows, r) * 256 + byte(rows, r + 1)
  return index, weights[index], byte(rows, r + 2), u64(rows, r + 3), u64(rows, r + 11), sub(rows, r + 19, r + 34)
end

local answers, given = {}, {}
for i = 1, n do
  local _, _, flags = row(i)
  if flags % 2 == 1 or sent_again then given[#given + 1] = ARGV[first + 2 * i - 2] end
end
local known = known_under(q, views, given)

local ms, ds, ts, dues, waiting = {}, {}, {}, {}, 0
for i = 1, n do
  local index, weight, flags, delay, ttl, hash = row(i)
  local id = ARGV[first + 2 * i - 2]
  local answer = (known[id] or 6) ~= 6 and id or ''
  if flags >= 2 and answer == '' and c[WINDOW] > 0 then
    local old = call('HGET', KEYS[P], hash)
    if old and u64(old, 1) > now then
      answer = sub(old, 9)
    else
      call('HSET', KEYS[P], hash, pack('>I8', now + c[WINDOW]) .. id)
      call('ZADD', KEYS[U], now + c[WINDOW], hash)
    end
  end
  answers[i] = answer
  if answer == '' then
    local at, seq8, l = #ids + 1, pack('>I8', c[SEQ] + #ids + 1), lanes[index]
    local until8, visible8 = zero8, pack('>I8', now + delay)
    if delay > 0 then until8 = visible8 elseif waits then until8, visible8 = into_line(q) end
    local expires8 = ttl > 0 and pack('>I8', now + ttl) or zero8
    if known[id] == 6 then unhold(q, id) end
    known[id] = 2
    ids[at], ms[2 * at - 1], ms[2 * at] = id, id, ARGV[first + 2 * i - 1]
    local place = (delay > 0 and visible8 or order8) .. sub(seq8, 3) .. weight
    local rest_of = expires8 .. seq8 .. visible8 .. now8 .. place .. l .. '\0\0\0\0\0\0'
      .. entry_for(seq8, #ARGV[first + 2 * i - 1])
    ss[2 * at - 1] = id
    dues[at] = visible8
    if ttl > 0 then ts[#ts + 1] = now + ttl ts[#ts + 1] = id end
    if delay > 0 or waits then
      ss[2 * at] = '\1\0\0\0\0\0' .. now8 .. until8 .. rest_of
      ds[#ds + 1] = u64(until8, 1)
      ds[#ds + 1] = id
      if waits then c[ORDER] = order end
      waiting = waiting + 1
    else
      ss[2 * at] = head .. rest_of
      zs[#zs + 1] = '0'
      zs[#zs + 1] = l .. place .. id
      c[ORDER] = order
      local x = added[l]
      if x then x[1] = x[1] + 1 else added[l] = {1, order, weight} end
    end
  end
end
if #ids > 0 then
  put_bodies(0, ms, 1, #ids, c[SEQ])
  call('HSET', KEYS[S], unpack(ss))
  if #zs > 0 then add_many(KEYS[Z], zs) end
  if #ds > 0 then add_many(KEYS[D], ds) end
  if #ts > 0 then add_many(KEYS[T], ts) end
  came(q, added)
  c[DELAYED] = c[DELAYED] + waiting
  c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + #ids
  record(q, 1, #ids, concat(ids), 0, column(dues, 8))
  rate(q, 'e', #ids)
  tell(q)
  if #views > 0 then fan_out(views, 0, ids, every_second(ss)) end
end
if #ids > 0 or q.events > 0 then
  remember_call(q, #ids < n and cmsgpack.pack(answers))
  close(q)
end
close_views(views)
return {DONE_NOW, now, not plain and answers or nil}
