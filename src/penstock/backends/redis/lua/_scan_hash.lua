-- Bodies, seen by who checks and repairs.
local R = M
local function has_body(id) return call('HEXISTS', KEYS[M], id) == 1 end
local function count_bodies() return call('HLEN', KEYS[M]) end
local function count_pending(c) return c[LEASED] end
local function renew_pending() end
local function remove_entry(id) call('HDEL', KEYS[M], id) end
local function is_pending() return true end
local function entry_named() return '' end
local function adopt() end
local function name_of() return '' end

-- A page: the next cursor, then id and body of each, the name of its entry, and whether a record leads to it.
local function page_of_bodies(cursor)
  local page, out = call('HSCAN', KEYS[M], cursor, 'COUNT', 200), {}
  for i = 1, #page[2], 2 do
    local id = page[2][i]
    out[#out + 1] = {id, page[2][i + 1], '', call('HEXISTS', KEYS[S], id) == 1}
  end
  return page[1], out
end
local function page_of_pending() return '0', {} end
local function page_of_lost_shares() return '0', {} end
local function is_shared_right() return true end
local function share_right() end
