-- A queue's settings are others: what of them scripts need, and what follows from them.

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
        if rec and c[PER_KEY] > 0 and not is_in_line(rec) then
          call('HINCRBY', KEYS[at + K], sub(lane_of(rec), 4), 1)
        end
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

-- The counters behind `at`; nil while a repair has them, or has to make them anew: its lock must not be written over.
local function changeable(at)
  local raw = redis.pcall('GET', KEYS[at + C])
  local read, c = pcall(cmsgpack.unpack, raw)
  if type(raw) ~= 'string' or not read or type(c) ~= 'table' then return nil end
  return type(c[SETTINGS]) == 'number' and c[SETTINGS] >= 0 and c or nil
end

-- `new`: counters of which only what the settings say counts.
local function change_settings(q, new)
  local c = q.c
  local per_key, delay = c[PER_KEY], delay_of(new)
  if delay ~= delay_of(c) then
    -- What is due by the old one is ready, as for every reader.
    q.runs, q.events = {}, 0
    if tick(q) then
      -- Of those that came at one time the index knows no order: some of them must not wait longer than the others.
      local first = call('ZRANGEBYSCORE', KEYS[q.at + D], IN_LINE, last_due(q), 'WITHSCORES', 'LIMIT', 0, 1)[2]
      while first and end_line(q, first) == SLICE do end
    end
    if q.ticked then close(q) end
    set_delay(c, delay)
  end
  c[SETTINGS] = new[SETTINGS]
  for place = MAX_LEASED, WINDOW do c[place] = new[place] end
  if c[PER_KEY] ~= per_key then count_flights(q) end
  call('SET', KEYS[q.at + C], cmsgpack.pack(c))
end
