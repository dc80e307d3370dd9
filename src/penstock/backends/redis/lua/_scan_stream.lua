-- Bodies, seen by who checks and repairs: entries of a stream, and what is pending of them.
local PAGE = 100

local function entry_at(name) return call('XRANGE', KEYS[M], name, name)[1] end
local function has_body(id, rec)
  local entry = #rec >= 87 and entry_at(name_of(rec))
  return entry and entry[2][2] == id or false
end
local function count_bodies() return call('XLEN', KEYS[M]) end
local function count_pending() return GROUP == '' and 0 or redis.pcall('XPENDING', KEYS[M], GROUP)[1] or 0 end
local function is_pending(rec)
  local name = name_of(rec)
  local row = GROUP ~= '' and redis.pcall('XPENDING', KEYS[M], GROUP, name, name, 1)[1]
  local consumer = consumer_of(rec)
  return type(row) == 'table' and row[2] == (consumer == '' and '-' or consumer)
end
local function renew_pending(seq, is_view)
  if not is_view and call('EXISTS', KEYS[M]) == 1 then reel_in(0, seq) end
  if GROUP == '' then return end
  redis.pcall('XGROUP', 'DESTROY', KEYS[M], GROUP)
  call('XGROUP', 'CREATE', KEYS[M], GROUP, '0', 'MKSTREAM')
end
local function remove_entry(_, name) call('XDEL', KEYS[M], name) end
-- One that has no number of its own has the next one from now on.
local function entry_named(name, size, seq)
  local number, part = string.match(name, '^(%d+)%-(%d+)$')
  if part ~= '0' then
    local fields = entry_at(name)[2]
    call('XDEL', KEYS[M], name)
    call('XADD', KEYS[M], entry_name(seq), unpack(fields))
    number = seq
  end
  return entry_for(pack('>I8', tonumber(number)), tonumber(size))
end
-- An entry whose message has a record that does not lead to it: it should, or there are two of it.
local function adopt(id, rec, name, size)
  if has_body(id, rec) then
    call('XDEL', KEYS[M], name)
  elseif #rec >= 87 and string.match(name, '%-0$') then
    call('HSET', KEYS[S], id, sub(rec, 1, -9) .. entry_named(name, size))
  end
end

local function page_of_bodies(cursor)
  local page, out = call('XRANGE', KEYS[M], cursor == '0' and '-' or '(' .. cursor, '+', 'COUNT', PAGE), {}
  for i, entry in ipairs(page) do
    local name, fields = entry[1], entry[2]
    local id = fields[1] == 'i' and fields[2] or ''
    local holders = 0
    for at = 0, #KEYS - OF_QUEUE, OF_QUEUE do
      local rec = call('HGET', KEYS[at + S], id)
      if rec and #rec >= 87 and name_of(rec) == name then holders = holders + 1 end
    end
    out[i] = {id, fields[3] == 'b' and fields[4] or '', name, holders > 0, holders}
  end
  return #page < PAGE and '0' or page[#page][1], out
end

-- How many lines an entry is said to have, which is true for that many.
local function share_field(name)
  local number, part = string.match(name, '^(%d+)%-(%d+)$')
  return part == '0' and sub(pack('>I8', tonumber(number)), 3) or nil
end
local function is_shared_right(name, holders)
  local field = share_field(name)
  return not field or (tonumber(call('HGET', KEYS[R], field) or 1)) == math.max(holders, 1)
end
local function share_right(name, holders)
  local field = share_field(name)
  if field and holders > 1 then call('HSET', KEYS[R], field, holders) elseif field then call('HDEL', KEYS[R], field) end
end
-- Shares of entries that are not there: a page of them.
local function page_of_lost_shares(cursor)
  local page, lost = call('HSCAN', KEYS[R], cursor, 'COUNT', 200), {}
  for i = 1, #page[2], 2 do
    local field = page[2][i]
    if #field ~= 6 or not entry_at(entry_name((unpacked('>I6', field)))) then lost[#lost + 1] = field end
  end
  return page[1], lost
end

-- Entries that the group has pending: a page of name, id and consumer.
local function page_of_pending(cursor)
  if GROUP == '' then return '0', {} end
  local page = redis.pcall('XPENDING', KEYS[M], GROUP, cursor == '0' and '-' or '(' .. cursor, '+', PAGE)
  if page.err then return '0', {} end
  local out = {}
  for i, row in ipairs(page) do
    local entry = entry_at(row[1])
    out[i] = {row[1], entry and entry[2][2] or '', row[2]}
  end
  return #page < PAGE and '0' or page[#page][1], out
end
