-- What every script begins with: the time, a queue's keys and counters, and its journal.
--
-- Keys of a queue, in this order from its place in KEYS on (keys.py builds them, docs/formats.md explains them):
--   c counters    m bodies     s states      z ready       o heads       d delayed    l leased
--   g done        y dead       t ttl         u dedup times p dedup ids   h held       j journal
--   b blocked     k in flight  a buried      w cursors     x rates       i calls      v departures
--   n arrivals    e earlier    q order of those            f0-f9 flows by level
-- ARGV[1] is the time in microseconds, -1 for the server's own; ARGV[2] a call's id (16), '1' if it is sent again, and
-- the consumer group, where there is one.
local call, sub, byte, concat = redis.call, string.sub, string.byte, table.concat
local pack, unpacked = struct.pack, struct.unpack
local C, M, S, Z, O, D, L, G, Y, T, U, P, H, J, B, K, A, W, X, I, V, N, E, Q, F =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25
-- Places in the record of counters.
local VERSION, SETTINGS, SEQ, ORDER, DELAYED, LEASED, DONE, DEAD, HELD = 1, 2, 3, 4, 5, 6, 7, 8, 9
local ENQUEUED_TOTAL, ACKED_TOTAL, FAILED_TOTAL, BYTES, BASE, BASE_COUNTS = 10, 11, 12, 13, 14, 15
local REQUIRED, NUMBER, CREATED, SECOND = 20, 21, 22, 23
local MAX_LEASED, PER_KEY, FIFO, RETENTION, DEAD_RETENTION, WINDOW = 24, 25, 26, 27, 28, 29
local READY, TAG, WAITED, FLOWS = 30, 40, 50, 60
-- Behind them, by the state that they are in: messages on their way to another queue of a cluster. Not there before the
-- first of them.
local LEAVING, LAST_LEAVING = 69, 74
-- Behind those: how long each message of a fifo queue waits. Not there before it was set.
local DELAY = 75
-- A message that waits for that has as `until`, and as its score, when it came in and this. So all of them stand in order
-- behind those that wait until a time of their own, and when they are due is what the setting says now.
local IN_LINE = 4503599627370496
local NOT_FOUND, CHANGED, DONE_NOW, MORE = -1, -2, 0, 1
local CALLS_KEPT_US = 60000000

-- From here on what the script did is written to log and replicas, not the script.
if redis.replicate_commands then redis.replicate_commands() end

local now = tonumber(ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now8, zero8 = pack('>I8', now), '\0\0\0\0\0\0\0\0'

-- A server without memory refuses what may need some, but not to a script that has written before, though it were nothing.
-- Who drains a queue, keeps what it holds or makes room goes on behind this; who fills the queue does not come here.
local function go_on_when_full(place) call('PERSIST', KEYS[place]) end

-- Many at once into a sorted set. A small one is kept as a list, in which each new member is compared with every other:
-- filling it costs the square. A member that is too long for a list makes it a tree, which it stays until it is empty.
local function add_many(index, members)
  local long = #members > 64 and string.rep('-', 65)
  if long then call('ZADD', index, '0', long) end
  local new = call('ZADD', index, unpack(members))
  if long then call('ZREM', index, long) end
  return new
end

-- What was remembered of a call when it was done; true if that is nothing special.
-- The answer, behind the call's id, has the score that the id has.
local function remembered(at, id)
  local calls = KEYS[at + I]
  local time = call('ZSCORE', calls, id)
  if not time then return nil end
  for _, member in ipairs(call('ZRANGEBYSCORE', calls, time, time)) do
    if #member > 16 and sub(member, 1, 16) == id then return sub(member, 17) end
  end
  return true
end

local function done_before(at)
  return sub(ARGV[2], 17, 17) == '1' and remembered(at, sub(ARGV[2], 1, 16)) or nil
end

-- The queue whose keys start behind `at`, if its settings are those that the caller knows (ARGV[place]).
-- `again` in it says that the first queue's call was done: then the settings do not matter any more.
local function open(at, place)
  local raw = call('GET', KEYS[at + C])
  if not raw then return nil, {NOT_FOUND} end
  local c, again = cmsgpack.unpack(raw), at == 0 and done_before(at)
  if not again and c[SETTINGS] ~= tonumber(ARGV[place]) then return nil, {CHANGED} end
  return {at = at, c = c, runs = {}, events = 0, again = again}
end

local function ready_of(c)
  local n = 0
  for level = READY, READY + 9 do n = n + c[level] end
  return n
end

-- So many of a state are on their way to another queue: they are the queue's until they have arrived.
local function leaving(c, state) return c[LEAVING + state] or 0 end

-- A column of texts: one for all rows, or all of them behind their lengths.
local function texts(column, n)
  if type(column) == 'string' then return column, false end
  local first, same = column[1], true
  for i = 2, n do
    if column[i] ~= first then same = false break end
  end
  if same then return first, false end
  local sizes = {}
  for i = 1, n do sizes[i] = pack('>I4', #column[i]) end
  return concat(sizes) .. concat(column), true
end

-- A column of packed numbers: a number if all are the same.
local function column(values, size)
  local first = values[1]
  for i = 2, #values do
    if values[i] ~= first then return concat(values) end
  end
  return (unpacked('>I' .. size, first))
end

-- What happened to `n` messages; columns are one value for all, or one for each.
local function record(q, kind, n, ids, attempts, due, consumer, reason, extra)
  local columns, attempt, due0, arrays = 0, attempts, due, ''
  if type(attempts) == 'string' then columns, attempt, arrays = 1, 0, attempts end
  if type(due) == 'string' then columns, due0, arrays = columns + 2, 0, arrays .. due end
  local c_text, c_many = texts(consumer or '', n)
  local r_text, r_many = texts(reason or '', n)
  local e_text, e_many = texts(extra or '', n)
  columns = columns + (c_many and 4 or 0) + (r_many and 8 or 0) + (e_many and 16 or 0)
  local head = pack('>BBI4I8I4I8I4I4I4', kind, columns, n, now, attempt, due0, #c_text, #r_text, #e_text)
  q.runs[#q.runs + 1] = head .. ids .. arrays .. c_text .. r_text .. e_text
  q.events = q.events + n
  q.c[SEQ] = q.c[SEQ] + n
end

-- Write the frame of what was recorded, and the counters.
local function close(q)
  local c, at = q.c, q.at
  if q.events > 0 then
    local frame = pack('>BI4I8I8I8I8I8I8I8', 1, q.events, c[SEQ] - q.events + 1, now,
      c[DELAYED] + leaving(c, 1), ready_of(c) + leaving(c, 2), c[LEASED] + leaving(c, 3), c[DONE],
      c[DEAD] + leaving(c, 5)) .. concat(q.runs)
    frame = frame .. sub(redis.sha1hex(frame), 1, 8)
    call('XADD', KEYS[at + J], string.format('%.0f-0', c[SEQ]), 'f', frame)
    c[BYTES] = c[BYTES] + #frame
  end
  call('SET', KEYS[at + C], cmsgpack.pack(c))
end

-- Count enqueues (e), acks (a) or failures (f) of this second; those of a minute ago make room.
local function rate(q, kind, n)
  local c, x, second = q.c, KEYS[q.at + X], math.floor(now / 1000000)
  local passed = second - c[SECOND]
  if passed ~= 0 then
    if passed >= 60 or passed < 0 then
      call('DEL', x)
    else
      local old = {}
      for one = c[SECOND] + 1, second do
        local slot = one % 60
        old[#old + 1], old[#old + 2], old[#old + 3] = 'e' .. slot, 'a' .. slot, 'f' .. slot
      end
      call('HDEL', x, unpack(old))
    end
    c[SECOND] = second
  end
  call('HINCRBY', x, kind .. (second % 60), n)
end

-- Whoever waits for this queue looks again. The channel has the name of the counters. A user who may not publish has
-- done everything else by then: that is no failure, and `health` tells.
local function tell(q) redis.pcall('PUBLISH', KEYS[q.at + C], '') end

-- This call is done, should it be sent again; with what its answer is made of, unless that is the usual one.
local function remember_call(q, answer)
  local id = sub(ARGV[2], 1, 16)
  if answer then
    call('ZADD', KEYS[q.at + I], now, id, now, id .. answer)
  else
    call('ZADD', KEYS[q.at + I], now, id)
  end
  if q.c[SEQ] % 16 == 0 then call('ZREMRANGEBYSCORE', KEYS[q.at + I], '-inf', now - CALLS_KEPT_US) end
end

-- Answers, a character each: what is worth to be remembered of them, and what they were.
local function unusual(answers) return string.find(answers, '[^1]') and answers end
local function same_again(q, n) return {DONE_NOW, now, q.again == true and string.rep('1', n) or q.again, ''} end

-- A state record: see docs/formats.md. Its lane is level, length of the key, key.
local function lane_of(rec) return sub(rec, 71, 73 + byte(rec, 72) * 256 + byte(rec, 73)) end
local function u64(rec, at) return (unpacked('>I8', rec, at)) end
local function is_in_line(rec) return byte(rec) == 1 and u64(rec, 15) >= IN_LINE end
local function line8(came_at) return pack('>I8', IN_LINE + came_at) end
local function delay_of(c) return c[DELAY] or 0 end
local function line_due(c, until_us) return until_us - IN_LINE + delay_of(c) end
local function after_lane(rec) return 74 + byte(rec, 72) * 256 + byte(rec, 73) end
local function consumer_of(rec)
  local at = after_lane(rec)
  return sub(rec, at + 2, at + 1 + byte(rec, at) * 256 + byte(rec, at + 1))
end
-- Length and text of the reason, and what leads to the body (see _bodies_stream.lua).
local function reason_of(rec)
  local at = after_lane(rec)
  return sub(rec, at + 2 + byte(rec, at) * 256 + byte(rec, at + 1))
end

-- Snapshots that are being read, each by its number (8) and the last seq that it shows (8): what a message was when one
-- of them was taken is kept, by number and id, before it becomes something else. A snapshot counts as a required cursor.
local LIVE = 'live'
local NEVER = '\255\255\255\255\255\255\255\255'
-- Where a message stands among those of its state: as its index has them.
local function standing(id, rec)
  local state = byte(rec)
  if state == 2 then return '\2' .. lane_of(rec) .. sub(rec, 55, 70) .. id end
  local key = state == 6 and sub(rec, 31, 38) or sub(rec, 15, 22)
  return string.char(state) .. (key == zero8 and NEVER or key) .. id
end
local function keep(q, ids, recs)
  local live = q.c[REQUIRED] > 0 and call('HGET', KEYS[q.at + E], LIVE)
  if not live then return end
  go_on_when_full(q.at + E)
  for at = 1, #live, 16 do
    local snapshot, last, order = sub(live, at, at + 7), u64(live, at + 8), {}
    for i, rec in ipairs(recs) do
      if rec and #rec >= 79 and u64(rec, 31) <= last and call('HSETNX', KEYS[q.at + E], snapshot .. ids[i], rec) == 1 then
        order[#order + 1] = '0'
        order[#order + 1] = snapshot .. standing(ids[i], rec)
      end
    end
    if #order > 0 then add_many(KEYS[q.at + Q], order) end
  end
end
