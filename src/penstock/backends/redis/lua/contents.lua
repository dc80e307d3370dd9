-- Messages by their ids, as a snapshot shows them, with their bodies. Reads c m s e n of one queue.
-- ARGV: 3 number of the queue, 4 number of the snapshot (8), 5 '1' with records, 6 the ids. Answers {0, time, records,
-- bodies (of large ones only the first)}; {-3} if the snapshot has ended.
--: shown bodies
local snapshot, last, no = shown(3)
if not snapshot then return no end
local ids, joined, with_records = {}, ARGV[6], ARGV[5] == '1'
for i = 1, #joined / 16 do ids[i] = sub(joined, 16 * i - 15, 16 * i) end
local now_recs, records = {}, {}
if with_records or IN_STREAM then now_recs = call('HMGET', KEYS[S], unpack(ids)) end
if with_records then
  local kept = {}
  for i, id in ipairs(ids) do kept[i] = snapshot .. id end
  records = call('HMGET', KEYS[E], unpack(kept))
  for i, rec in ipairs(now_recs) do
    -- One that is on its way to another queue is kept, if it is shown at all.
    if not records[i] then records[i] = rec and #rec >= 79 and byte(rec) ~= 7 and u64(rec, 31) <= last and rec end
  end
end
local bodies = bodies_of(ids, now_recs)
-- Bodies that were replaced since: mostly none is kept at all.
if #bodies > 0 and call('EXISTS', KEYS[Q]) == 1 then
  local kept = {}
  for i = 1, #bodies do kept[i] = 'b' .. snapshot .. ids[i] end
  for i, body in ipairs(call('HMGET', KEYS[E], unpack(kept))) do
    if body then bodies[i] = body end
  end
end
return {DONE_NOW, now, records, bodies}
