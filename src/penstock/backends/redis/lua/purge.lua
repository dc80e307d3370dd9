-- Remove a slice of the messages of one state. Touches c m s z o d l g y t h j b k a i e q f0-f9 of one queue.
-- ARGV: 3 settings, 4 state, 5 the last seq that counts ('' for now), 6 where to go on, 7 most.
-- Answers {0, time, how many went, where to go on ('' at the end), the last seq that counts}.
--: bodies flows steps time
local INDEX = {[1] = D, [3] = L, [4] = G, [5] = Y}
local q, no = open(0, 3)
if not q then return no end
if q.again then return {DONE_NOW, now, unpack(cmsgpack.unpack(q.again))} end
local c, state, most, from = q.c, tonumber(ARGV[4]), tonumber(ARGV[7]), ARGV[6]
if tick(q) then close(q) return {MORE} end
local last = ARGV[5] == '' and c[SEQ] or tonumber(ARGV[5])
local ids, on = {}, ''
if state == 2 then
  local members = call('ZRANGEBYLEX', KEYS[Z], from == '' and '-' or '(' .. from, '+', 'LIMIT', 0, most)
  for i, member in ipairs(members) do ids[i] = sub(member, -16) end
  if #ids == most then on = members[#members] end
else
  -- What was looked at and stays is skipped by its number: nothing comes before it in the meantime but later ones.
  local skipped = tonumber(from == '' and '0' or from)
  ids = call('ZRANGE', KEYS[INDEX[state]], skipped, skipped + most - 1)
  if #ids == most then on = 'more' end
end
local gone, recs, attempts = {}, {}, {}
if #ids > 0 then
  for i, rec in ipairs(call('HMGET', KEYS[S], unpack(ids))) do
    if rec and #rec >= 79 and byte(rec) == state and u64(rec, 31) <= last then
      gone[#gone + 1], recs[#recs + 1], attempts[#attempts + 1] = ids[i], rec, sub(rec, 3, 6)
    end
  end
end
if on == 'more' then on = string.format('%d', tonumber(from == '' and '0' or from) + #ids - #gone) end
if #gone > 0 then
  leave(q, gone, recs)
  forget(q, gone, recs, c[SEQ] + 1)
  record(q, 12, #gone, concat(gone), column(attempts, 4), 0)
  remember_call(q, cmsgpack.pack({#gone, on, string.format('%.0f', last)}))
  if c[PER_KEY] > 0 or c[MAX_LEASED] > 0 then tell(q) end
end
if #gone > 0 or q.ticked then close(q) end
return {DONE_NOW, now, #gone, on, string.format('%.0f', last)}
