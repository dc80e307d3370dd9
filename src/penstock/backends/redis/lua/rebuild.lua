-- Rebuild what is derived from a queue's records, a slice at a time; meanwhile nobody else gets at the queue.
-- Touches c m s z o d l g y t u p h j b k a w v e q f0-f9 of one queue, on streams r, and reads s of its further lines.
-- ARGV: 3 step, 4 cursor or settings, 5 on see below. Steps:
--   begin    4: counters for a queue that has none, 5 '1' for the line of a further group     drops what is derived, and locks;
--            answers {0, time, '0', {}, settings before}
--   records  4: cursor   records of 200 messages are put into their indexes; those without a body go
--   shares   4: cursor   what is said of entries that are gone goes
--   bodies   4: cursor   how many lines have each is counted; answers {0, time, next cursor, {id, body, name of its entry, '1' if a record leads to it} of each}
--   lost     4: id, 5 lane, 6 weight, 7 entry, 8 its size   a body without a record is ready again
--   drop     4: id, 5 entry   a body, or a record, that cannot be used goes
--   dedup    4: cursor
--   finish   4: settings   counts, and unlocks. Answers {0, time, next cursor, repaired ids}
-- The last of ARGV is this repair's number, below 0, which locks the queue: {-2} where another repair has it by now.
--: bodies flows steps scan leaving
local step, cursor, gone, lock = ARGV[3], ARGV[4], {}, tonumber(ARGV[#ARGV])

-- Counters as they are stored, or nil: damaged ones are worth as much as none.
local function stored()
  local raw = redis.pcall('GET', KEYS[C])
  if type(raw) ~= 'string' then return nil end
  local read, found = pcall(cmsgpack.unpack, raw)
  if not read or type(found) ~= 'table' or
    (#found ~= FLOWS + 9 and #found ~= LAST_LEAVING and #found ~= DELAY) or found[VERSION] ~= 1 then
    return nil
  end
  for i = 1, #found do
    if type(found[i]) ~= 'number' then return nil end
  end
  return found
end

local c = stored()
local fresh = not c
if fresh and step ~= 'begin' then return {NOT_FOUND} end
if fresh then
  call('DEL', KEYS[C])
  c = cmsgpack.unpack(ARGV[4])
end
if step == 'finish' and c[SETTINGS] == tonumber(ARGV[4]) then return {DONE_NOW, now, '0', gone} end -- Sent again.
if step ~= 'begin' and c[SETTINGS] ~= lock then return {CHANGED} end
local q, before = {at = 0, c = c, runs = {}, events = 0}, c[SETTINGS]

if step == 'begin' then
  for _, key in ipairs({Z, O, D, L, G, Y, T, H, B, K, A}) do call('DEL', KEYS[key]) end
  if ARGV[5] ~= '1' then call('DEL', KEYS[U]) end
  for level = 0, 9 do
    rest(q, level)
    c[READY + level], c[FLOWS + level] = 0, 0
  end
  for place = LEAVING + 1, LAST_LEAVING do c[place] = c[place] and 0 end
  c[SETTINGS], c[DELAYED], c[LEASED], c[DONE], c[DEAD], c[HELD], c[REQUIRED] = lock, 0, 0, 0, 0, 0, 0
  local rows = call('HGETALL', KEYS[W])
  for i = 2, #rows, 2 do
    local read, row = pcall(cmsgpack.unpack, rows[i])
    if read and type(row) == 'table' then c[REQUIRED] = c[REQUIRED] + (tonumber(row[2]) or 0) end
  end
  -- Not the last entry: that may have been trimmed, and the stream takes no lower number all the same.
  local about = call('EXISTS', KEYS[J]) == 1 and call('XINFO', 'STREAM', KEYS[J]) or {}
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then
      c[SEQ] = math.max(c[SEQ], tonumber(string.match(about[i + 1], '^%d+')))
    end
  end
  renew_pending(c[SEQ], ARGV[5] == '1')
  if fresh then
    -- What was trimmed is known by what is left.
    local first = call('XRANGE', KEYS[J], '-', '+', 'COUNT', 1)[1]
    local frame = first and first[2][2] or ''
    if not first then c[BASE] = c[SEQ] elseif #frame >= 61 then c[BASE] = u64(frame, 6) - 1 end
  end
  c[BYTES] = 0
  local from = '-'
  repeat
    local page = call('XRANGE', KEYS[J], from, '+', 'COUNT', 500)
    for _, row in ipairs(page) do c[BYTES] = c[BYTES] + #(row[2][2] or '') end
    if #page > 0 then from = string.format('%.0f-0', tonumber(string.match(page[#page][1], '^%d+')) + 1) end
  until #page == 0
  cursor = '0'
elseif step == 'records' then
  local page = call('HSCAN', KEYS[S], cursor, 'COUNT', 200)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local id, rec = page[2][i], page[2][i + 1]
    local away = sub(rec, 1, 1) == AWAY and sub(rec, 18)
    if away and call('HEXISTS', KEYS[V], sub(rec, 2, 17)) == 0 then
      rec, away = away, nil -- Nobody knows any more where it was to go.
      call('HSET', KEYS[S], id, rec)
    end
    local state = byte(away or rec) or 0
    if not has_body(id, away or rec) then
      call('HDEL', KEYS[S], id)
      if #rec >= 79 + #entry_of(rec) then gone[#gone + 1] = id end
    elseif away and #away >= 79 and (state == 5 or state > 0 and state < 4) then
      c[SEQ] = math.max(c[SEQ], u64(away, 31)) -- Counted at the end, by its transfer.
    elseif #rec < 79 or state < 1 or state > 6 then
      call('HDEL', KEYS[S], id) -- Its body is then one without a record.
    else
      -- HSCAN may show one twice: what is in its index already is not put there again.
      if byte(rec, 2) == 1 then call('ZADD', KEYS[A], u64(rec, 31), id) end
      if state == 2 then
        if not call('ZSCORE', KEYS[Z], lane_of(rec) .. sub(rec, 55, 70) .. id) then enter_ready(q, {id}, {rec}, true) end
      elseif state == 6 then
        c[HELD] = c[HELD] + call('ZADD', KEYS[H], u64(rec, 31), id)
      elseif state == 3 then
        if call('ZADD', KEYS[L], u64(rec, 15), id) == 1 then
          c[LEASED] = c[LEASED] + 1
          claim({id}, {rec}, consumer_of(rec), {sub(rec, 3, 6)})
          if c[PER_KEY] > 0 then fly(q, sub(lane_of(rec), 4), 1) end
        end
      elseif not call('ZSCORE', KEYS[({[1] = D, [4] = G, [5] = Y})[state]], id) then
        enter(q, state, {id}, {rec})
      end
      c[ORDER] = math.max(c[ORDER], (state == 2 or is_in_line(rec)) and u64(rec, 55) or 0)
      c[SEQ] = math.max(c[SEQ], u64(rec, 31))
    end
  end
  if #gone > 0 then record(q, 15, #gone, concat(gone), 0, 0, '', 'the body is missing') end
elseif step == 'bodies' then
  local next_one, page = page_of_bodies(cursor)
  for i, one in ipairs(page) do
    share_right(one[3], one[5])
    page[i] = {one[1], one[2], one[3], one[4] and '1' or '0'}
  end
  return {DONE_NOW, now, next_one, page}
elseif step == 'shares' then
  local next_one, lost = page_of_lost_shares(cursor)
  if #lost > 0 then call('HDEL', KEYS[R], unpack(lost)) end
  return {DONE_NOW, now, next_one, {}}
elseif step == 'lost' then
  local id = ARGV[4]
  local there = call('HGET', KEYS[S], id)
  if there then
    adopt(id, there, ARGV[7], ARGV[8])
  else
    local seq = c[SEQ] + 1
    local rec = '\2\0\0\0\0\0' .. now8 .. zero8 .. zero8 .. pack('>I8', seq) .. now8 .. now8
      .. last_place(q, seq, pack('>I2', tonumber(ARGV[6]))) .. ARGV[5] .. '\0\0\0\0\0\0'
      .. entry_named(ARGV[7], ARGV[8], seq)
    enter_ready(q, {id}, {rec}, false)
    record(q, 15, 1, id, 0, 0, '', 'the record was missing', 'ready')
  end
elseif step == 'drop' then
  call('HDEL', KEYS[S], ARGV[4])
  remove_entry(ARGV[4], ARGV[5])
  -- What somebody added by hand may have no id at all.
  local id = #ARGV[4] == 16 and ARGV[4] or string.rep('\0', 16)
  record(q, 15, 1, id, 0, 0, '', 'the body does not decode')
elseif step == 'dedup' then
  local page = call('HSCAN', KEYS[P], cursor, 'COUNT', 200)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    if #page[2][i + 1] == 24 then
      call('ZADD', KEYS[U], u64(page[2][i + 1], 1), page[2][i])
    else
      call('HDEL', KEYS[P], page[2][i])
    end
  end
elseif step == 'finish' then
  local transfers = call('HGETALL', KEYS[V])
  for i = 1, #transfers, 2 do
    local part = 0
    for _, id in ipairs(ids_of_departure(transfers[i + 1])) do
      local rec = of_transfer(call('HGET', KEYS[S], id), transfers[i])
      if rec then
        count_leaving(c, byte(rec), 1)
        part = part + 1
      end
    end
    if part == 0 then call('HDEL', KEYS[V], transfers[i]) end
  end
  c[SETTINGS] = tonumber(ARGV[4])
  -- Of no message: from here on the journal starts with what is counted now.
  record(q, 15, 1, string.rep('\0', 16), 0, 0, '', 'counted anew')
  tell(q)
end
close(q)
return {DONE_NOW, now, cursor, gone, step == 'begin' and before or nil}
