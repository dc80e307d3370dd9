-- Who is served next: lanes with ready messages (heads), those of them that may be served (flows), and how
-- many messages of a key are in flight where that is limited.
local function lane(level, key) return string.char(level) .. pack('>I2', #key) .. key end
local function between(l) return '[' .. l, '(' .. l .. '\255' end

local function in_flight(q, key) return tonumber(call('HGET', KEYS[q.at + K], key) or 0) end

-- A level without anything ready forgets its turns.
local function rest(q, level)
  call('DEL', KEYS[q.at + F + level])
  q.c[TAG + level], q.c[WAITED + level] = 0, 0
end

-- Messages became ready: lane -> {how many, order of the first, its weight in two bytes}. `earlier`: they may stand
-- before others. A lane stands in the flows by when its next message would be finished: who is new starts with the
-- turn served last, and waits for its own. Were it to start there, a stream of new ones would overtake all others.
local function came(q, lanes, earlier)
  local c, at = q.c, q.at
  local flows, heads = {}, {}
  for l, x in pairs(lanes) do
    local level = byte(l)
    c[READY + level] = c[READY + level] + x[1]
    local head = earlier and call('ZSCORE', KEYS[at + O], l)
    if not head or x[2] < tonumber(head) then
      if head then call('ZREM', KEYS[at + O], l) c[FLOWS + level] = c[FLOWS + level] - 1 end
      local some = heads[level] or {'NX'}
      heads[level] = some
      some[#some + 1] = x[2]
      some[#some + 1] = l
    end
    if c[PER_KEY] == 0 or in_flight(q, sub(l, 4)) < c[PER_KEY] then
      local some = flows[level] or {'NX'}
      flows[level] = some
      some[#some + 1] = c[TAG + level] + 1 / (byte(x[3]) * 256 + byte(x[3], 2))
      some[#some + 1] = l
    end
  end
  for level, some in pairs(heads) do c[FLOWS + level] = c[FLOWS + level] + add_many(KEYS[at + O], some) end
  for level, some in pairs(flows) do add_many(KEYS[at + F + level], some) end
end

-- Ready messages went, other than by their turn: lane -> how many.
local function went(q, lanes)
  local c, at = q.c, q.at
  for l, n in pairs(lanes) do
    local level = byte(l)
    c[READY + level] = c[READY + level] - n
    local from, to = between(l)
    local head = call('ZRANGEBYLEX', KEYS[at + Z], from, to, 'LIMIT', 0, 1)[1]
    if head then
      call('ZADD', KEYS[at + O], u64(head, #head - 31), l)
    else
      c[FLOWS + level] = c[FLOWS + level] - call('ZREM', KEYS[at + O], l)
    end
    if c[READY + level] == 0 then rest(q, level) end
  end
end

-- A key has as many in flight as it may: its lanes leave the flows, which keep their tags for them.
local function block(q, key)
  for level = 0, 9 do
    local l, f = lane(level, key), KEYS[q.at + F + level]
    local tag = call('ZSCORE', f, l)
    if tag then
      call('ZREM', f, l)
      call('HSET', KEYS[q.at + B], l, tag)
    end
  end
end

local function unblock(q, key)
  local c, at = q.c, q.at
  for level = 0, 9 do
    local l = lane(level, key)
    local tag = call('HGET', KEYS[at + B], l)
    if tag then call('HDEL', KEYS[at + B], l) end
    if c[READY + level] > 0 and (tag or call('ZSCORE', KEYS[at + O], l)) then
      -- The rest of its turn, and no more than one round of credit or debt, however long it was full.
      local v = c[TAG + level]
      tag = math.min(math.max(tonumber(tag or v + 1), v - 1), v + 1)
      call('ZADD', KEYS[at + F + level], 'NX', tag, l)
    end
  end
end

-- So many more of a key are in flight, or fewer.
local function fly(q, key, n)
  local k, limit = KEYS[q.at + K], q.c[PER_KEY]
  local count = call('HINCRBY', k, key, n)
  if count <= 0 then call('HDEL', k, key) end
  if n > 0 and count >= limit then block(q, key)
  elseif n < 0 and count < limit and count - n >= limit then unblock(q, key) end
end
