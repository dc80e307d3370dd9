-- Create, change and delete queues, and record it in the system's world: all of it or nothing.
-- KEYS: store, queues, worlds, entries, frames of the system's world, store; then all keys of each queue, and of each that
-- is deleted what they are called afterwards, if a snapshot shows it.
-- ARGV: 3 version of the catalogue, 4 changes; op ('c', 'u', 'd'), name, row and counters of each; then what is to be
-- appended (see _worlds.lua). Answers {0} or {-2} where the catalogue is not as it was.
--: flows steps worlds
local OF_QUEUE, FIRST = F + 9, 6
local changes = tonumber(ARGV[4])
if changes > 0 and appended(KEYS[4], 5 + 4 * changes) then return {DONE_NOW} end
if (call('HGET', KEYS[1], 'version') or '0') ~= ARGV[3] then return {CHANGED} end
if changes > 0 and not append_world({KEYS[3], KEYS[4], KEYS[5], KEYS[1]}, 5 + 4 * changes) then return {CHANGED} end
call('HINCRBY', KEYS[1], 'version', 1)

-- Who is in flight and who may be served, anew: a limit came, went, or is another.
local function count_flights(q)
  local c, at = q.c, q.at
  call('DEL', KEYS[at + K], KEYS[at + B])
  for _, index in ipairs(c[FIFO] == 1 and {L, D} or {L}) do
    local cursor = '0'
    repeat
      local page = call('ZSCAN', KEYS[at + index], cursor, 'COUNT', 500)
      cursor = page[1]
      for i = 1, #page[2], 2 do
        local rec = call('HGET', KEYS[at + S], page[2][i])
        if rec and c[PER_KEY] > 0 then call('HINCRBY', KEYS[at + K], sub(lane_of(rec), 4), 1) end
      end
    until cursor == '0'
  end
  for level = 0, 9 do call('DEL', KEYS[at + F + level]) end
  local from = 0
  repeat
    local lanes = call('ZRANGE', KEYS[at + O], from, from + 499)
    for _, l in ipairs(lanes) do
      if c[PER_KEY] == 0 or in_flight(q, sub(l, 4)) < c[PER_KEY] then
        call('ZADD', KEYS[at + F + byte(l)], c[TAG + byte(l)] + 1, l)
      end
    end
    from = from + 500
  until #lanes == 0
end

local aside, SHOWN_MS = FIRST + OF_QUEUE * changes, 86400000
for i = 1, changes do
  local at, a = FIRST + OF_QUEUE * (i - 1), 1 + 4 * i
  local op, name = ARGV[a], ARGV[a + 1]
  if op == 'd' then
    call('HDEL', KEYS[2], name)
    -- What a snapshot shows of it stays under other names, for as long as one may be read.
    local shown = call('HEXISTS', KEYS[at + E], LIVE) == 1
    for k = 1, OF_QUEUE do
      if shown and call('EXISTS', KEYS[at + k]) == 1 then
        call('RENAME', KEYS[at + k], KEYS[aside + k])
        call('PEXPIRE', KEYS[aside + k], SHOWN_MS)
      else
        call('UNLINK', KEYS[at + k])
      end
    end
    aside = aside + OF_QUEUE
  else
    call('HSET', KEYS[2], name, ARGV[a + 2])
    if op == 'c' then
      call('SET', KEYS[at + C], ARGV[a + 3])
    else
      local q, new = {at = at, c = cmsgpack.unpack(call('GET', KEYS[at + C]))}, cmsgpack.unpack(ARGV[a + 3])
      local per_key = q.c[PER_KEY]
      q.c[SETTINGS] = new[SETTINGS]
      for place = MAX_LEASED, WINDOW do q.c[place] = new[place] end
      if q.c[PER_KEY] ~= per_key then count_flights(q) end
      call('SET', KEYS[at + C], cmsgpack.pack(q.c))
    end
  end
  redis.pcall('PUBLISH', KEYS[at + C], '')
end
return {DONE_NOW}
