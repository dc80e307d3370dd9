-- These are done. Touches c m s l g h j b k a x i e q f0-f9 of one queue, and o to serve a key again.
-- ARGV: 3 settings, 4 tokens (8 each), then the ids. Answers {0, time, '' or '0' (stale) for each, leased since}.
--: bodies flows steps
local q, no = open(0, 3)
if not q then return no end
local c, tokens, n = q.c, ARGV[4], #ARGV - 4
if q.again then return same_again(q, n) end
local recs = call('HMGET', KEYS[S], unpack(ARGV, 5))
local all, attempts, since, buried = true, {}, {}, {}
for i = 1, n do
  local rec = recs[i]
  if not rec or byte(rec) ~= 3 or sub(rec, 31, 38) ~= sub(tokens, 8 * i - 7, 8 * i) then all = false break end
  attempts[i], since[i] = sub(rec, 3, 6), sub(rec, 7, 14)
  if byte(rec, 2) == 1 then buried[#buried + 1] = ARGV[4 + i] end
end

-- By far the most: every receipt holds its message, and nothing is kept or counted by key.
if all and c[RETENTION] == 0 and c[REQUIRED] == 0 and c[PER_KEY] == 0 then
  local removed = call('HDEL', KEYS[S], unpack(ARGV, 5))
  if removed == n then
    finish(0, ARGV, 5, recs)
    call('ZREM', KEYS[L], unpack(ARGV, 5))
    if #buried > 0 then call('ZREM', KEYS[A], unpack(buried)) end
    c[LEASED], c[ACKED_TOTAL] = c[LEASED] - n, c[ACKED_TOTAL] + n
    record(q, 5, n, concat(ARGV, '', 5), column(attempts, 4), 0)
    rate(q, 'a', n)
    remember_call(q)
    close(q)
    if c[MAX_LEASED] > 0 then tell(q) end
    return {DONE_NOW, now, '', concat(since)}
  end
  -- One of them came twice: as it stood, and one by one.
  local seen, back = {}, {}
  for i = 1, n do
    if not seen[ARGV[4 + i]] then
      seen[ARGV[4 + i]] = true
      back[#back + 1] = ARGV[4 + i]
      back[#back + 1] = recs[i]
    end
  end
  call('HSET', KEYS[S], unpack(back))
end

local ids, held, seen, answers = {}, {}, {}, {}
attempts, since = {}, {}
for i = 1, n do
  local id, rec = ARGV[4 + i], recs[i]
  if rec and byte(rec) == 3 and sub(rec, 31, 38) == sub(tokens, 8 * i - 7, 8 * i) and not seen[id] then
    seen[id] = true
    ids[#ids + 1], held[#held + 1] = id, rec
    attempts[#attempts + 1], since[#since + 1] = sub(rec, 3, 6), sub(rec, 7, 14)
    answers[i] = '1'
  else
    answers[i] = '0'
  end
end
if #ids > 0 then
  local remove_at = c[RETENTION] > 0 and now + c[RETENTION] or 0
  leave(q, ids, held)
  if remove_at > 0 then
    local until8 = pack('>I8', remove_at)
    for i, rec in ipairs(held) do
      held[i] = turned(rec, 4, nil, until8, nil, pack('>I8', c[SEQ] + i))
      held[i] = sub(held[i], 1, 1) .. '\0' .. sub(held[i], 3)
    end
    enter(q, 4, ids, held)
  else
    forget(q, ids, held, c[SEQ] + 1)
  end
  c[ACKED_TOTAL] = c[ACKED_TOTAL] + #ids
  record(q, 5, #ids, concat(ids), column(attempts, 4), remove_at)
  rate(q, 'a', #ids)
  remember_call(q, unusual(concat(answers)))
  close(q)
  if c[MAX_LEASED] > 0 or c[PER_KEY] > 0 then tell(q) end
end
return {DONE_NOW, now, concat(answers), concat(since)}
