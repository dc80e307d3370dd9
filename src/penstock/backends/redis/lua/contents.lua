-- Messages by their ids, as a snapshot shows them, with their bodies. Reads c m s e of one queue.
-- ARGV: 3 number of the queue, 4 number of the snapshot (8), 5 '1' with bodies, then the ids. Answers {0, time, records,
-- bodies (of large ones only the first)}; {-3} if the snapshot has ended.
--: shown bodies
local snapshot, last, no = shown(3)
if not snapshot then return no end
local ids, kept, bodies_kept = {unpack(ARGV, 6)}, {}, {}
for i, id in ipairs(ids) do kept[i], bodies_kept[i] = snapshot .. id, 'b' .. snapshot .. id end
local now_recs, records = call('HMGET', KEYS[S], unpack(ids)), call('HMGET', KEYS[E], unpack(kept))
for i, rec in ipairs(now_recs) do
  if not records[i] then records[i] = rec and #rec >= 79 and u64(rec, 31) <= last and rec end
end
if ARGV[5] ~= '1' then return {DONE_NOW, now, records, {}} end
local bodies = bodies_of(ids, now_recs)
if #bodies > 0 then
  for i, body in ipairs(call('HMGET', KEYS[E], unpack(bodies_kept, 1, #bodies))) do
    if body then bodies[i] = body end
  end
end
return {DONE_NOW, now, records, bodies}
