-- A slice of one of a queue's keys, against what it must agree with. Reads c m s z o d l g y t u p h b k a v f0-f9.
-- Behind them come the keys of the lines of further groups, of those that are being dropped, too.
-- ARGV: 3 settings, 4 what, 5 cursor, 6 '1' if there are several lines, 7 '1' if this is not the queue's own. Answers {0, time,
-- next cursor ('0' at the end), problems (kind, where), looked at}.
--: bodies flows steps scan leaving
local INDEX = {d = {D, 1}, l = {L, 3}, g = {G, 4}, y = {Y, 5}, h = {H, 6}}
local q, no = open(0, 3)
if not q then return no end
local c, what, cursor, problems, looked = q.c, ARGV[4], ARGV[5], {}, {}

local function wrong(kind, where)
  problems[#problems + 1] = kind
  problems[#problems + 1] = where
end

local DEPARTED_US = 10000000
local function sound(rec)
  if sub(rec, 1, 1) == AWAY then rec = sub(rec, 18) end
  if #rec < 79 or byte(rec) < 1 or byte(rec) > 6 then return false end
  local at = after_lane(rec)
  if #rec < at + 1 then return false end
  at = at + 2 + byte(rec, at) * 256 + byte(rec, at + 1)
  return #rec >= at + 3 and #rec == at + 3 + unpacked('>I4', rec, at) + #entry_of(rec)
end

local function scored(key, id, expected)
  local score = call('ZSCORE', KEYS[key], id)
  return score and tonumber(score) == expected
end

local function of_state(id, rec)
  if not sound(rec) then return wrong('record', id) end
  local state, until_us, expires = byte(rec), u64(rec, 15), u64(rec, 23)
  if not has_body(id, state == 7 and sub(rec, 18) or rec) then wrong('body missing', id) end
  if state == 7 then
    if call('HEXISTS', KEYS[V], sub(rec, 2, 17)) == 0 then wrong('transfer missing', id) end
    return
  end
  if state == 2 then
    if not call('ZSCORE', KEYS[Z], lane_of(rec) .. sub(rec, 55, 70) .. id) then wrong('ready row missing', id) end
  elseif state == 6 then
    if not scored(H, id, u64(rec, 31)) then wrong('held row missing', id) end
  elseif not scored(({[1] = D, [3] = L, [4] = G, [5] = Y})[state], id, until_us > 0 and until_us or math.huge) then
    wrong('state row missing', id)
  end
  if state == 3 and not is_pending(rec) then wrong('not pending', id) end
  if state < 3 and expires > 0 and not scored(T, id, expires) then wrong('ttl row missing', id) end
  if byte(rec, 2) == 1 and not call('ZSCORE', KEYS[A], id) then wrong('buried row missing', id) end
end

-- A row of an index: its record must say the same.
local function of_index(member, score)
  local id = what == 'z' and sub(member, -16) or member
  local rec = call('HGET', KEYS[S], id)
  if not rec or not sound(rec) then return wrong('row of nothing', what .. ' ' .. id) end
  local state, good = byte(rec), true
  if what == 'z' then
    good = state == 2 and member == lane_of(rec) .. sub(rec, 55, 70) .. id
  elseif what == 't' then
    good = state < 3 and u64(rec, 23) == score
  elseif what == 'a' then
    good = byte(rec, 2) == 1
  elseif what == 'h' then
    good = state == 6 and u64(rec, 31) == score
  else
    local until_us = u64(rec, 15)
    good = state == INDEX[what][2] and (until_us > 0 and until_us or math.huge) == score
  end
  if not good then wrong('row of another', what .. ' ' .. id) end
end

local function of_lane(l, score)
  local from, to = between(l)
  local head = call('ZRANGEBYLEX', KEYS[Z], from, to, 'LIMIT', 0, 1)[1]
  if not head then return wrong('head of nothing', l) end
  if u64(head, #head - 31) ~= score then wrong('head', l) end
  local full = c[PER_KEY] > 0 and in_flight(q, sub(l, 4)) >= c[PER_KEY]
  local flows = call('ZSCORE', KEYS[F + byte(l)], l) and true or false
  if flows == full then wrong(full and 'flow of a full key' or 'flow missing', l) end
end

local function counters()
  local away = 0
  for _, state in ipairs({1, 2, 3, 5}) do away = away + leaving(c, state) end
  local expected = {delayed = {c[DELAYED], 'ZCARD', D}, leased = {c[LEASED], 'ZCARD', L}, done = {c[DONE], 'ZCARD', G},
    dead = {c[DEAD], 'ZCARD', Y}, held = {c[HELD], 'ZCARD', H}, ready = {ready_of(c), 'ZCARD', Z}}
  local all = away
  for name, x in pairs(expected) do
    local count = call(x[2], KEYS[x[3]])
    all = all + count
    if count ~= x[1] then wrong('counter', name) end
  end
  if call('HLEN', KEYS[S]) ~= all then wrong('counter', 'records') end
  if ARGV[6] ~= '1' and count_bodies() ~= all then wrong('counter', 'bodies') end
  if count_pending(c) ~= c[LEASED] then wrong('counter', 'pending') end
  -- A repair of the own line has all of them to itself for a while.
  if ARGV[7] ~= '1' and call('HLEN', KEYS[P]) ~= call('ZCARD', KEYS[U]) then wrong('counter', 'dedup') end
  local flows = 0
  for level = 0, 9 do
    local low, high = string.char(level), string.char(level + 1)
    if call('ZLEXCOUNT', KEYS[Z], '[' .. low, '(' .. high) ~= c[READY + level] then wrong('counter', 'level ' .. level) end
    flows = flows + c[FLOWS + level]
  end
  if flows ~= call('ZCARD', KEYS[O]) then wrong('counter', 'flows') end
  local required, rows = 0, call('HGETALL', KEYS[W])
  for i = 2, #rows, 2 do required = required + cmsgpack.unpack(rows[i])[2] end
  if required ~= c[REQUIRED] then wrong('counter', 'required cursors') end
  local flying, counted = 0, call('HVALS', KEYS[K])
  for _, n in ipairs(counted) do flying = flying + tonumber(n) end
  local retried = c[FIFO] == 1 and call('ZCOUNT', KEYS[D], '-inf', '(' .. string.format('%.0f', IN_LINE)) or 0
  local in_the_air = c[PER_KEY] == 0 and 0 or c[LEASED] + retried
  if flying ~= in_the_air then wrong('counter', 'in flight') end
end

-- A transfer that is written down: of messages that are part of it, and not forsaken.
local function of_departure(transfer, row)
  local part = 0
  for _, id in ipairs(ids_of_departure(row)) do
    if of_transfer(call('HGET', KEYS[S], id), transfer) then part = part + 1 end
  end
  if part == 0 then
    wrong('transfer of nothing', transfer)
  elseif u64(row, 1) + DEPARTED_US <= now then
    wrong('transfer', transfer)
  end
end

if what == 'c' then
  counters()
  return {DONE_NOW, now, '0', problems, {call('GET', KEYS[C]), call('HLEN', KEYS[S])}}
end
if what == 'm' then
  local page
  cursor, page = page_of_bodies(cursor)
  for i, one in ipairs(page) do
    looked[2 * i - 1], looked[2 * i] = one[1], one[2]
    if not one[4] then
      wrong('body of nothing', one[1])
    elseif not is_shared_right(one[3], one[5]) then
      wrong('shares', one[1])
    end
  end
elseif what == 'e' then
  local page
  cursor, page = page_of_pending(cursor)
  for _, one in ipairs(page) do
    local rec = call('HGET', KEYS[S], one[2])
    if not rec or not sound(rec) or byte(rec) ~= 3 or name_of(rec) ~= one[1] then wrong('pending of nothing', one[1]) end
  end
elseif what == 'r' then
  local lost
  cursor, lost = page_of_lost_shares(cursor)
  for _, field in ipairs(lost) do wrong('shares', field) end
elseif what == 's' or what == 'p' or what == 'v' then
  local page = call('HSCAN', KEYS[({s = S, p = P, v = V})[what]], cursor, 'COUNT', 200)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local id, value = page[2][i], page[2][i + 1]
    if what == 's' then
      of_state(id, value)
    elseif what == 'v' then
      of_departure(id, value)
    elseif #value ~= 24 or not scored(U, id, u64(value, 1)) then
      wrong('dedup row missing', id)
    end
  end
else
  local page = call('ZSCAN', KEYS[({z = Z, d = D, l = L, g = G, y = Y, t = T, h = H, a = A, u = U, o = O})[what]], cursor,
    'COUNT', 200)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local member, score = page[2][i], tonumber(page[2][i + 1])
    if what == 'o' then
      of_lane(member, score)
    elseif what == 'u' then
      if call('HEXISTS', KEYS[P], member) == 0 then wrong('row of nothing', 'u ' .. member) end
    else
      of_index(member, score)
    end
  end
end
return {DONE_NOW, now, cursor, problems, looked}
