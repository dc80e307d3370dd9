-- Frames of a queue's journal from a seq on. Reads c w j of one queue.
-- ARGV: 3 settings, 4 seq, or 'c' and a cursor's name in 5, 6 most. Answers {0, time, base, frames, seq}.
local q, no = open(0, 3)
if not q then return no end
local after = tonumber(ARGV[4])
if ARGV[4] == 'c' then
  local raw = call('HGET', KEYS[W], ARGV[5])
  if not raw then return {DONE_NOW, now, -1} end
  after = cmsgpack.unpack(raw)[1]
end
local base = q.c[BASE]
local rows = call('XRANGE', KEYS[J], string.format('%.0f-0', math.max(after, base) + 1), '+', 'COUNT', ARGV[6])
local frames = {}
for i, row in ipairs(rows) do frames[i] = row[2][2] end
return {DONE_NOW, now, base, frames, after}
