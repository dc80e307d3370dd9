-- A slice of what a group that is dropped holds is released: entries that no other group has go.
-- Touches c m s r of the group's line. ARGV: 3 settings, 4 cursor. Answers {0, time, next cursor, how many are left}.
--: bodies
local q, no = open(0, 3)
if not q then return no end
local page, ids, recs = call('HSCAN', KEYS[S], ARGV[4], 'COUNT', 200), {}, {}
for i = 1, #page[2], 2 do
  ids[#ids + 1] = page[2][i]
  if #page[2][i + 1] >= 87 then recs[#recs + 1] = page[2][i + 1] end
end
if #recs > 0 then drop_bodies(0, nil, recs) end
if #ids > 0 then call('HDEL', KEYS[S], unpack(ids)) end
return {DONE_NOW, now, page[1], call('HLEN', KEYS[S])}
