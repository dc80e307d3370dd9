-- A slice of a queue's housekeeping: what has expired, delays, retention, dedup ids, held bodies, its journal.
-- Touches c m s z o d l g y t u p h j b k a w x i v n e q f0-f9 of one queue, and what is done in the lines of its further groups.
-- ARGV: 3 settings, 4 microseconds that events are kept ('' for ever), 5 bytes that the journal may have ('' any),
-- 6 entries that a stream may have ('' any), 7 'MAXLEN' or 'MINID'.
-- Answers {0, time, slices of work done, ids and records of ended leases, transfers that nobody has gone on with for a
-- while: those that started here, and those that arrived}.
--: bodies flows steps time views
local FRAMES, HEAD = 100, 61
local PAGES, DEPARTED_US, ARRIVED_US = 10, 10000000, 60000000
local q, no = open(0, 3)
if not q then return no end
local c, work = q.c, 0

tick(q)
if q.ticked then work = 1 end

local function remove_from(line, ids, recs)
  leave(line, ids, recs)
  forget(line, ids, recs, line.c[SEQ] + 1)
  record(line, 13, #ids, concat(ids), 0, 0)
end
local function remove(ids, recs)
  if #ids == 0 then return end
  remove_from(q, ids, recs)
  work = 1
end

-- What a stream has no room for goes from all lines at once: each keeps it until then.
local function trim()
  local views = open_views(OF_QUEUE, q)
  if not views then return end -- One of them is being repaired.
  local ids, recs = beyond(q, tonumber(ARGV[6]), ARGV[7], SLICE, views)
  remove(ids, recs)
  for _, v in ipairs(#ids > 0 and views or {}) do
    local some, of_some = {}, {}
    for i, rec in ipairs(call('HMGET', KEYS[v.at + S], unpack(ids))) do
      if rec and byte(rec) == 4 then some[#some + 1], of_some[#of_some + 1] = ids[i], rec end
    end
    if #some > 0 then remove_from(v, some, of_some) end
  end
  close_views(views)
end
if c[DONE] > 0 then remove(due(q, G, SLICE)) end
if c[DEAD] > 0 and c[DONE] == 0 or work == 0 then remove(due(q, Y, SLICE)) end
if IN_STREAM and ARGV[6] ~= '' and c[DONE] > 0 then trim() end

local hashes = call('ZRANGEBYSCORE', KEYS[U], '-inf', now, 'LIMIT', 0, SLICE)
if #hashes > 0 then
  call('HDEL', KEYS[P], unpack(hashes))
  call('ZREM', KEYS[U], unpack(hashes))
  work = 1
end

-- The last seq that every required cursor has read.
local read = c[SEQ]
if c[REQUIRED] > 0 then
  local rows = call('HGETALL', KEYS[W])
  for i = 2, #rows, 2 do
    local sound, row = pcall(cmsgpack.unpack, rows[i])
    if not sound or type(row) ~= 'table' or not tonumber(row[1]) then
      read = 0 -- Who knows how far: nothing goes until that is mended.
    elseif row[2] == 1 then
      read = math.min(read, row[1])
    end
  end
end
if c[HELD] > 0 then
  local ids = call('ZRANGEBYSCORE', KEYS[H], '-inf', read, 'LIMIT', 0, SLICE)
  if #ids > 0 then
    call('ZREM', KEYS[H], unpack(ids))
    drop_bodies(0, ids, call('HMGET', KEYS[S], unpack(ids)))
    call('HDEL', KEYS[S], unpack(ids))
    c[HELD] = c[HELD] - #ids
    work, q.ticked = 1, true
  end
end

local old, size = tonumber(ARGV[4]), tonumber(ARGV[5])
if old then old = now - old end
if c[BASE] < c[SEQ] - q.events and (old or size) then
  -- Frames that are damaged say neither when they were nor what was counted by then: they go with the next sound
  -- one, which is younger. The stream's number of a frame is the last seq in it, whatever became of the rest.
  local removed, damaged, damaged_bytes = 0, 0, 0
  local first = call('XRANGE', KEYS[J], '-', '+', 'COUNT', 1)[1]
  local function due_frame(at) return (old and at < old) or (size and c[BYTES] > size) end
  -- Frame, its last seq, and if it is sound its time and the counts after it.
  local function parts(row)
    local frame, last = row[2][2] or '', tonumber(string.match(row[1], '^%d+'))
    if #frame < HEAD then return frame, last end
    local version, count, first_seq, at, d, r, l, done, dead = unpacked('>BI4I8I8I8I8I8I8I8', frame)
    if version ~= 1 or first_seq + count - 1 ~= last then return frame, last end
    return frame, last, at, d, r, l, done, dead
  end
  local at = first and select(3, parts(first))
  local is_due = first and (not at or due_frame(at))
  for _, row in ipairs(is_due and call('XRANGE', KEYS[J], '-', '+', 'COUNT', FRAMES) or {}) do
    local frame, last, at, d, r, l, done, dead = parts(row)
    if last > read then break end
    if not at then
      damaged, damaged_bytes = damaged + 1, damaged_bytes + #frame
    else
      if not due_frame(at) then break end
      removed = removed + damaged + 1
      c[BASE], c[BYTES] = last, c[BYTES] - damaged_bytes - #frame
      c[BASE_COUNTS], c[BASE_COUNTS + 1], c[BASE_COUNTS + 2] = d, r, l
      c[BASE_COUNTS + 3], c[BASE_COUNTS + 4] = done, dead
      damaged, damaged_bytes = 0, 0
    end
  end
  if removed > 0 then
    local left = call('XLEN', KEYS[J]) - removed
    if left == 0 then c[BYTES] = 0 end -- What damage took from a frame was counted.
    call('XTRIM', KEYS[J], 'MAXLEN', left)
    work, q.ticked = 1, true
  end
end

call('ZREMRANGEBYSCORE', KEYS[I], '-inf', now - CALLS_KEPT_US)
local ids, recs = due(q, L, SLICE)
if q.ticked or q.events > 0 then close(q) end

local function forsaken(key, after_us)
  local out, cursor, pages = {}, '0', 0
  if call('EXISTS', KEYS[key]) == 0 then return out end
  repeat
    local page = call('HSCAN', KEYS[key], cursor, 'COUNT', 100)
    cursor, pages = page[1], pages + 1
    for i = 1, #page[2], 2 do
      if #page[2][i + 1] < 8 or u64(page[2][i + 1], 1) + after_us <= now then out[#out + 1] = page[2][i] end
    end
  until cursor == '0' or pages == PAGES or #out >= 100
  return out
end
return {DONE_NOW, now, work, ids, recs, forsaken(V, DEPARTED_US), forsaken(N, ARRIVED_US)}
