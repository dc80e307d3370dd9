-- A slice of what waits in a queue is given to the line of a new group, each message once, as if it were new there.
-- Touches s m r of the queue, and c s z o d t j k b a x given f0-f9 of the line, whose keys follow the queue's.
-- ARGV: 3 and 4 settings, 5 cursor, 6 '1' if that was all. Answers {0, time, next cursor, how many}.
--: bodies flows steps views
local LINE = OF_QUEUE
local q, no = open(0, 3)
if not q then return no end
local v, not_there = open(LINE, 4)
if not v then return not_there end
local boundary = tonumber(call('HGET', KEYS[LINE + GIVEN], 'b') or -1)
if boundary < 0 then return {DONE_NOW, now, '0', 0} end -- Someone else came to the end of it.
if ARGV[6] == '1' then
  call('UNLINK', KEYS[LINE + GIVEN])
  return {DONE_NOW, now, '0', 0}
end
local page = call('HSCAN', KEYS[S], ARGV[5], 'COUNT', 200)
local ids, recs = {}, {}
for i = 1, #page[2], 2 do
  local id, rec = page[2][i], page[2][i + 1]
  -- What is on its way to another queue, or back if that is gone, is seen as if it had not left yet.
  if byte(rec) == 7 then rec = sub(rec, 18) end
  -- Later ones came to this line by themselves. HSCAN may show one twice: it must not come back when it is done.
  if #rec >= 87 and byte(rec) <= 3 and unpacked('>I6', rec, #rec - 5) <= boundary
    and call('HSETNX', KEYS[LINE + GIVEN], id, '') == 1 then
    local delayed = byte(rec) == 1 and sub(rec, 3, 6) == '\0\0\0\0'
    local visible8 = (delayed or byte(rec) == 2) and sub(rec, 39, 46) or now8
    -- One that waited for a retry waits no longer: its place was to be a later one.
    local order8 = byte(rec) == 1 and not delayed and now8 or sub(rec, 55, 62)
    local until8 = is_in_line(rec) and sub(rec, 15, 22) or delayed and visible8 or zero8
    recs[#recs + 1] = (delayed and '\1' or '\2') .. sub(rec, 2, 2) .. '\0\0\0\0' .. now8 .. until8
      .. sub(rec, 23, 38) .. visible8 .. sub(rec, 47, 54) .. order8 .. sub(rec, 63, after_lane(rec) - 1) .. '\0\0\0\0\0\0' .. entry_of(rec)
    ids[#ids + 1] = id
  end
end
if #ids > 0 then
  join_line(v, ids, recs, true)
  share(0, recs, 1)
  close(v)
  tell(v)
end
return {DONE_NOW, now, page[1], #ids}
