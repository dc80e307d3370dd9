-- Where bodies are: in a stream, an entry each, of which a consumer group has those pending that are leased. An entry is
-- named by the seq of the event that brought it, and has the id (field i) and the body (field b). A record ends with
-- 8 bytes: KiB of the body (2), seq of the entry (6).
local R, GIVEN, OF_QUEUE, IN_STREAM = F + 10, F + 11, F + 11, true
local MOST_KIB, GROUP = 8192, sub(ARGV[2], 18)

local function entry_name(seq) return string.format('%.0f-0', seq) end
local function entry_for(seq8, size) return pack('>I2', math.min(math.ceil(size / 1024), 65535)) .. sub(seq8, 3) end
local function entry_of(rec) return sub(rec, -8) end
local function name_of(rec) return entry_name((unpacked('>I6', rec, #rec - 5))) end
local function names_of(recs)
  local names = {}
  for i, rec in ipairs(recs) do names[i] = name_of(rec) end
  return names
end

-- Newer servers let a stream's last number fall no more below what was ever deleted: the stream is written anew, with its
-- groups and what is pending, and ends with that number. The queue's own line has no use for GIVEN but this.
local function copy_stream(at, last)
  local stream = KEYS[at + M]
  call('RENAME', stream, KEYS[at + GIVEN])
  local from = '-'
  repeat
    local page = call('XRANGE', KEYS[at + GIVEN], from, '+', 'COUNT', 500)
    for _, row in ipairs(page) do call('XADD', stream, row[1], unpack(row[2])) end
    if #page > 0 then from = '(' .. page[#page][1] end
  until #page < 500
  for _, about in ipairs(call('XINFO', 'GROUPS', KEYS[at + GIVEN])) do
    local group, rows = about[2], nil
    call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
    from = '-'
    repeat
      rows = call('XPENDING', KEYS[at + GIVEN], group, from, '+', 500)
      for _, row in ipairs(rows) do
        call('XCLAIM', stream, group, row[2], '0', row[1], 'IDLE', row[3], 'RETRYCOUNT', row[4], 'FORCE', 'JUSTID')
      end
      if #rows > 0 then from = '(' .. rows[#rows][1] end
    until #rows < 500
  end
  call('UNLINK', KEYS[at + GIVEN])
  if call('EXISTS', stream) == 1 then call('XSETID', stream, last) end
end

-- Somebody added entries by hand, with numbers that are not given out yet: none could be added any more. They stay, as
-- parts of the last number, and belong to no message until a repair makes messages of them.
local function reel_in(at, seq)
  local stream, rows = KEYS[at + M], call('XRANGE', KEYS[at + M], entry_name(seq + 1), '+')
  for _, row in ipairs(rows) do call('XDEL', stream, row[1]) end
  local low = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  local part = low and tonumber(string.match(low[1], '^' .. string.format('%.0f', seq) .. '%-(%d+)$')) or 0
  local last = string.format('%.0f-%d', seq, part)
  local set = redis.pcall('XSETID', stream, last)
  if set.err then copy_stream(at, last) end
  for i, row in ipairs(rows) do call('XADD', stream, string.format('%.0f-%d', seq, part + i), unpack(row[2])) end
end

local function put_bodies(at, list, from, n, seq)
  local stream = KEYS[at + M]
  local first = redis.pcall('XADD', stream, entry_name(seq + 1), 'i', list[from], 'b', list[from + 1])
  if type(first) == 'table' and first.err then
    -- For any other reason, such as a server without memory, it fails again, and says so.
    if string.find(first.err, 'equal or smaller', 1, true) then reel_in(at, seq) end
    call('XADD', stream, entry_name(seq + 1), 'i', list[from], 'b', list[from + 1])
  end
  for i = 2, n do
    call('XADD', stream, entry_name(seq + i), 'i', list[from + 2 * i - 2], 'b', list[from + 2 * i - 1])
  end
end

-- So many more lines have these entries: those of one line alone are not counted.
local function share(at, recs, more)
  for _, rec in ipairs(more > 0 and recs or {}) do
    local field = sub(rec, -6)
    if call('HINCRBY', KEYS[at + R], field, more) == more then call('HINCRBY', KEYS[at + R], field, 1) end
  end
end
-- One line is done with these: the names of those that no other has.
local function unshared(at, recs)
  local shares, fields, names = KEYS[at + R], {}, {}
  if call('EXISTS', shares) == 0 then return names_of(recs) end
  for i, rec in ipairs(recs) do fields[i] = sub(rec, -6) end
  for i, n in ipairs(call('HMGET', shares, unpack(fields))) do
    n = tonumber(n or 1)
    if n < 2 then names[#names + 1] = name_of(recs[i]) end
    if n <= 2 then call('HDEL', shares, fields[i]) else call('HINCRBY', shares, fields[i], -1) end
  end
  return names
end
local function drop_bodies(at, _, recs)
  local names = unshared(at, recs)
  if #names > 0 then call('XDEL', KEYS[at + M], unpack(names)) end
end
local function swap_body(at, id, rec, body, seq)
  drop_bodies(at, nil, {rec})
  put_bodies(at, {id, body}, 1, 1, seq - 1)
end

local function release(at, recs) call('XACK', KEYS[at + M], GROUP, unpack(names_of(recs))) end
local function finish(at, _, _, recs)
  local names = names_of(recs)
  call('XACK', KEYS[at + M], GROUP, unpack(names))
  if call('EXISTS', KEYS[at + R]) == 1 then names = unshared(at, recs) end
  if #names > 0 then call('XDEL', KEYS[at + M], unpack(names)) end
end

-- How many of these are as much as one answer should have.
local function fitting(recs)
  local n, kib = 0, 0
  while n < #recs and kib < MOST_KIB do
    n = n + 1
    local rec = recs[n]
    if rec and #rec >= 87 then kib = kib + (unpacked('>I2', rec, #rec - 7)) end
  end
  return n
end

local function body_at(at, _, rec)
  local name = rec and #rec >= 87 and name_of(rec)
  local entry = name and call('XRANGE', KEYS[at + M], name, name)[1]
  return entry and entry[2][4] or false
end
local function bodies_of(_, recs)
  local out = {}
  for i = 1, fitting(recs) do out[i] = body_at(0, nil, recs[i]) end
  return out
end

-- Claimed for the consumer, whether or not somebody had them: who has them by the records is decided by then.
local function claimed(names, consumer, attempts, without)
  local n = #names
  names[n + 1], names[n + 2], names[n + 3], names[n + 4] = 'RETRYCOUNT', attempts, 'FORCE', without and 'JUSTID'
  local got = redis.pcall('XCLAIM', KEYS[M], GROUP, consumer, '0', unpack(names))
  if got.err then
    redis.pcall('XGROUP', 'CREATE', KEYS[M], GROUP, '0', 'MKSTREAM')
    got = call('XCLAIM', KEYS[M], GROUP, consumer, '0', unpack(names))
  end
  return got
end

-- Entries that follow one another, for the first time: reading them costs two thirds of claiming them. Nil where they
-- are not all there.
local function read_next(first, n, consumer)
  redis.pcall('XGROUP', 'SETID', KEYS[M], GROUP, string.format('%.0f-18446744073709551615', first - 1))
  local got = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', n, 'STREAMS', KEYS[M], '>')
  local entries, out = type(got) == 'table' and not got.err and got[1] and got[1][2] or {}, {}
  for i = 1, #entries do out[i] = entries[i][2][4] end
  if #out == n and entries[n][1] == entry_name(first + n - 1) then return out end
  -- Some were deleted by hand, and others read in their places: those are whose they were.
  for _, entry in ipairs(entries) do
    local rec = call('HGET', KEYS[S], entry[2][2] or '')
    if rec and #rec >= 87 and byte(rec) == 3 and name_of(rec) == entry[1] then
      local holder = consumer_of(rec)
      call('XCLAIM', KEYS[M], GROUP, holder == '' and '-' or holder, '0', entry[1], 'RETRYCOUNT',
        (unpacked('>I4', rec, 3)), 'FORCE', 'JUSTID')
    else
      call('XACK', KEYS[M], GROUP, entry[1])
    end
  end
end

local function claim(_, recs, consumer, attempts)
  local n, tried, by_attempts, out = #recs, attempts[1], {}, {}
  if consumer == '' then consumer = '-' end
  -- By far the most: all for the first time, one behind the other, of which all fit.
  local kib, first = unpacked('>I2I6', recs[1], #recs[1] - 7)
  local same, follow = true, tried == '\0\0\0\1'
  for i = 2, n do
    if attempts[i] ~= tried then same, follow = false, false break end
    if follow then
      -- The last three bytes of its number tell one that follows: what is read is compared by name.
      local high, low, _, _, _, b2, b1, b0 = byte(recs[i], -8, -1)
      kib, follow = kib + high * 256 + low, b2 * 65536 + b1 * 256 + b0 == (first + i - 1) % 16777216
    end
  end
  local read = follow and kib < MOST_KIB and read_next(first, n, consumer)
  if read then return read end
  local most = fitting(recs)
  same = same and most == n
  if same then
    local got = claimed(names_of(recs), consumer, (unpacked('>I4', attempts[1])))
    for i, entry in ipairs(got) do out[i] = entry and entry[2][4] end
    if #got == n then return out end
    out = {}
  end
  for i, rec in ipairs(recs) do
    local tried = attempts[i]
    local some = by_attempts[tried]
    if not some then
      some = {{}, {}, {}}
      by_attempts[tried] = some
    end
    if i <= most then
      some[1][#some[1] + 1], some[2][#some[2] + 1], out[i] = name_of(rec), i, false
    else
      some[3][#some[3] + 1] = name_of(rec)
    end
  end
  for tried, some in pairs(by_attempts) do
    local names, places, rest = unpack(some)
    tried = (unpacked('>I4', tried))
    if #places > 0 then
      local wanted, next_one = {unpack(names)}, 1
      for _, entry in ipairs(claimed(names, consumer, tried)) do
        -- An entry that is missing is left out: the others follow in their order.
        while entry and wanted[next_one] ~= entry[1] do next_one = next_one + 1 end
        if entry then out[places[next_one]] = entry[2][4] end
      end
    end
    if #rest > 0 then claimed(rest, consumer, tried, true) end
  end
  return out
end

-- Whether a message is done in these lines, or not there; an entry that nobody else has is.
local function is_done_elsewhere(views, id, rec)
  if #views == 0 then return (tonumber(call('HGET', KEYS[R], sub(rec, -6)) or 1)) < 2 end
  for _, v in ipairs(views) do
    local state = byte(call('HGET', KEYS[v.at + S], id) or '\4')
    if state ~= 4 and state ~= 6 then return false end
  end
  return true
end

-- Done messages that a stream of so many entries has no room for, the first done first: as many as are too many, or
-- those that came before the last so many. None that is not done in one of the lines. Entries that are only held for
-- required cursors are none too many: they went before, and the stream gets no shorter by what goes in their place.
local function beyond(q, most, strategy, slice, views)
  local too_many = slice
  if strategy == 'MAXLEN' then
    too_many = call('XLEN', KEYS[M]) - most - q.c[HELD]
    for _, v in ipairs(views) do too_many = too_many - v.c[HELD] end
  end
  if too_many <= 0 then return {}, {} end
  local ids, out, sound = call('ZRANGE', KEYS[G], 0, slice - 1), {}, {}
  if #ids == 0 then return {}, {} end
  local last = call('XREVRANGE', KEYS[M], '+', '-', 'COUNT', 1)[1]
  local lowest = tonumber(string.match(last and last[1] or '0', '^%d+')) - most
  for i, rec in ipairs(call('HMGET', KEYS[S], unpack(ids))) do
    if #out == too_many or not rec or #rec < 87 or byte(rec) ~= 4 then break end
    if strategy == 'MINID' and unpacked('>I6', rec, #rec - 5) > lowest then break end
    if is_done_elsewhere(views, ids[i], rec) then out[#out + 1], sound[#sound + 1] = ids[i], rec end
  end
  return out, sound
end
