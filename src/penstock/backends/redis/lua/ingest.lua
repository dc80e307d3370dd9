-- The next rows of a chunk become messages. Touches c m s z o d t u p h j k b a x e q f0-f9 of one queue, then a chunk
-- and what came of the chunks of its write.
-- ARGV: 3 settings, 4 most, 5 when the write began, 6 its place in line.
-- A row: flags (1 id given, 2 dedup, 4 times or dedup), weight (2), id (16), length of the lane (2), lane; with flag 4
-- delay and ttl in microseconds (8 each) and hashed dedup id (16); body.
-- Answers {0, time, rows left in the chunk}.
--: bodies flows steps time views
local CHUNK, DONE_SO_FAR = OF_QUEUE + 1, OF_QUEUE + 2
local q, no = open(0, 3)
if not q then return no end
local views = open_views(DONE_SO_FAR, q)
if not views then return {CHANGED} end
-- Tasks go by clocks of their own: nothing begins later than now.
local c, began = q.c, math.min(tonumber(ARGV[5]), now)
local rows = call('LRANGE', KEYS[CHUNK], 0, tonumber(ARGV[4]) - 1)
if #rows == 0 then return {DONE_NOW, now, 0} end
local order, began8 = math.min(tonumber(ARGV[6]), math.max(c[ORDER], now)), pack('>I8', began)
local waits = lines_up(q)
if waits then order = math.max(c[ORDER], now) end -- Its delay counts from when a row is a message.
local order8 = pack('>I8', order)

local found = {}
for i, row in ipairs(rows) do found[i] = sub(row, 4, 19) end
local known = known_under(q, views, found)

local ids, bodies, states, zs, ds, ts, dues, added, existing, ready = {}, {}, {}, {}, {}, {}, {}, {}, 0, false
for i, row in ipairs(rows) do
  local id, flags, weight = found[i], byte(row), sub(row, 2, 3)
  local at = 22 + byte(row, 20) * 256 + byte(row, 21)
  local l, delay, ttl, fresh = sub(row, 22, at - 1), 0, 0, (known[id] or 6) == 6
  if flags >= 4 then
    delay, ttl = u64(row, at), u64(row, at + 8)
    if fresh and flags % 4 >= 2 and c[WINDOW] > 0 then
      local hash = sub(row, at + 16, at + 31)
      local old = call('HGET', KEYS[P], hash)
      if old and u64(old, 1) > now then
        fresh = false
      else
        call('HSET', KEYS[P], hash, pack('>I8', now + c[WINDOW]) .. id)
        call('ZADD', KEYS[U], now + c[WINDOW], hash)
      end
    end
    at = at + 32
  end
  if not fresh then
    existing = existing + 1
  else
    local n = #ids + 1
    local seq8, visible8 = pack('>I8', c[SEQ] + n), delay > 0 and pack('>I8', began + delay) or began8
    local until8 = delay > 0 and visible8 or zero8
    if waits then until8, visible8 = into_line(q) end
    local expires8 = ttl > 0 and pack('>I8', began + ttl) or zero8
    local place = (delay > 0 and visible8 or order8) .. sub(seq8, 3) .. weight
    if known[id] == 6 then unhold(q, id) end
    known[id] = 2
    ids[n], bodies[2 * n - 1], bodies[2 * n] = id, id, sub(row, at)
    states[2 * n - 1] = id
    states[2 * n] = ((delay > 0 or waits) and '\1' or '\2') .. '\0\0\0\0\0' .. now8 .. until8 .. expires8
      .. seq8 .. visible8 .. began8 .. place .. l .. '\0\0\0\0\0\0' .. entry_for(seq8, #row - at + 1)
    dues[n] = (delay > 0 or waits) and visible8 or now8
    if ttl > 0 then ts[#ts + 1] = began + ttl ts[#ts + 1] = id end
    if delay > 0 or waits then
      ds[#ds + 1] = u64(until8, 1)
      ds[#ds + 1] = id
    else
      ready = true
      zs[#zs + 1] = '0'
      zs[#zs + 1] = l .. place .. id
      local x = added[l]
      if x then x[1] = x[1] + 1 else added[l] = {1, order, weight} end
    end
  end
end
if #ids > 0 then
  put_bodies(0, bodies, 1, #ids, c[SEQ])
  call('HSET', KEYS[S], unpack(states))
  if #zs > 0 then add_many(KEYS[Z], zs) end
  if #ds > 0 then add_many(KEYS[D], ds) end
  if #ts > 0 then add_many(KEYS[T], ts) end
  came(q, added, true)
  if ready or waits then c[ORDER] = math.max(c[ORDER], order) end
  c[DELAYED] = c[DELAYED] + #ds / 2
  c[ENQUEUED_TOTAL] = c[ENQUEUED_TOTAL] + #ids
  record(q, 1, #ids, concat(ids), 0, column(dues, 8))
  rate(q, 'e', #ids)
  if #views > 0 then fan_out(views, 0, ids, every_second(states)) end
end
-- Rows, messages and how many they are: all of it or nothing.
call('LTRIM', KEYS[CHUNK], #rows, -1)
call('HINCRBY', KEYS[DONE_SO_FAR], 'enqueued', #ids)
call('HINCRBY', KEYS[DONE_SO_FAR], 'existing', existing)
call('PERSIST', KEYS[DONE_SO_FAR])
if q.events > 0 then close(q) tell(q) end
close_views(views)
return {DONE_NOW, now, call('LLEN', KEYS[CHUNK])}
