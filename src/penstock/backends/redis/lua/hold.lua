-- A snapshot of a queue begins or ends. Touches c m s z o d t h j k b a w v e q f0-f9 of one queue.
-- ARGV: 3 settings (of no matter to 'drop'), 4 'take' or 'drop', 5 number of the snapshot (8), 6 '1' to drop
-- what a deleted queue has, all of it with the last snapshot. Answers {0, time, counters, last seq that all required
-- cursors have read or -1} as they were when it began; or {0, time, '1' if there is more to drop}; {1} if time has more
-- to do first.
--: bodies flows steps time leaving
local DROPPED = 1000
local q, no = open(0, 3)
if ARGV[4] == 'drop' then
  -- Whatever its settings are, and whoever is at it.
  local raw = call('GET', KEYS[C])
  q = raw and {at = 0, c = cmsgpack.unpack(raw), runs = {}, events = 0}
end
if not q then return no end
local c, number = q.c, ARGV[5]
local row = '\0' .. number

local function live_without()
  local live, out = call('HGET', KEYS[E], LIVE) or '', {}
  for at = 1, #live, 16 do
    if sub(live, at, at + 7) ~= number then out[#out + 1] = sub(live, at, at + 15) end
  end
  return concat(out)
end

-- What is on its way to another queue stands in no index: it is kept as it was before, as if it set out now.
local function keep_leaving()
  local transfers = call('HGETALL', KEYS[V])
  for i = 1, #transfers, 2 do
    for _, id in ipairs(ids_of_departure(transfers[i + 1])) do
      local rec = of_transfer(call('HGET', KEYS[S], id), transfers[i])
      if rec and #rec >= 79 then
        call('HSET', KEYS[E], number .. id, rec)
        call('ZADD', KEYS[Q], '0', number .. standing(id, rec))
      end
    end
  end
end

if ARGV[4] == 'take' then
  local began = call('HGET', KEYS[E], 'c' .. number)
  if not began then
    if tick(q) or q.ticked then
      close(q)
      return {MORE}
    end
    local read, rows = -1, call('HGETALL', KEYS[W])
    for i = 1, #rows, 2 do
      local cursor = cmsgpack.unpack(rows[i + 1])
      if cursor[2] == 1 and sub(rows[i], 1, 1) ~= '\0' and (read < 0 or cursor[1] < read) then read = cursor[1] end
    end
    began = cmsgpack.pack({call('GET', KEYS[C]), string.format('%.0f', read)})
    local live = live_without() .. number .. pack('>I8', c[SEQ])
    call('HSET', KEYS[E], 'c' .. number, began, LIVE, live)
    keep_leaving()
    -- All of the journal is kept, and bodies that go from now on.
    call('HSET', KEYS[W], row, cmsgpack.pack({c[BASE], 1}))
    c[REQUIRED] = c[REQUIRED] + 1
    close(q)
  end
  return {DONE_NOW, now, unpack(cmsgpack.unpack(began))}
end

if call('HDEL', KEYS[W], row) == 1 then
  c[REQUIRED] = c[REQUIRED] - 1
  close(q)
end
local live = live_without()
if live == '' then
  call('UNLINK', KEYS[E], KEYS[Q])
  for k = 1, ARGV[6] == '1' and OF_QUEUE or 0 do call('UNLINK', KEYS[k]) end
  return {DONE_NOW, now, '0'}
end
call('HSET', KEYS[E], LIVE, live)
call('HDEL', KEYS[E], 'c' .. number)
local members = call('ZRANGEBYLEX', KEYS[Q], '[' .. number, '(' .. number .. '\255', 'LIMIT', 0, DROPPED)
if #members > 0 then
  local kept = {}
  for _, member in ipairs(members) do
    kept[#kept + 1] = number .. sub(member, -16)
    kept[#kept + 1] = 'b' .. number .. sub(member, -16)
  end
  call('HDEL', KEYS[E], unpack(kept))
  call('ZREM', KEYS[Q], unpack(members))
end
return {DONE_NOW, now, #members == DROPPED and '1' or '0'}
