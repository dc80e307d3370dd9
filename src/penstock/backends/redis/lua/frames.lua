-- Frames of a queue's journal from a seq on, for a snapshot. Reads c j e of one queue.
-- ARGV: 3 number of the queue, 4 number of the snapshot (8), 5 seq, 6 most. Answers {0, time, base, last seqs, frames}.
--: shown
local snapshot, _, no = shown(3)
if not snapshot then return no end
local base = cmsgpack.unpack(call('GET', KEYS[C]))[BASE]
local seqs, frames = {}, {}
for i, row in ipairs(call('XRANGE', KEYS[J], string.format('%.0f-0', tonumber(ARGV[5])), '+', 'COUNT', ARGV[6])) do
  seqs[i], frames[i] = tonumber(string.match(row[1], '^%d+')), row[2][2] or ''
end
return {DONE_NOW, now, base, seqs, frames}
