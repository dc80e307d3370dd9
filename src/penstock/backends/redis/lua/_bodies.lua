-- Bodies, as many as one answer should have: the first of them at least.
local MOST_BYTES, LARGE_BYTES, IN_STREAM = 8388608, 65536, false
local function bodies_of(ids)
  local out, size, at = {}, 0, 1
  while at <= #ids and size < MOST_BYTES do
    -- Large ones one by one: a page of the largest would be more than the server has.
    local step = call('HSTRLEN', KEYS[M], ids[at]) > LARGE_BYTES and 1 or 100
    local some = call('HMGET', KEYS[M], unpack(ids, at, math.min(at + step - 1, #ids)))
    if #some == #ids then return some end
    for _, body in ipairs(some) do
      out[#out + 1] = body
      size = size + (body and #body or 0)
    end
    at = at + step
  end
  return out
end

-- What a record ends with to lead to its body: here the id does.
local function entry_for() return '' end

-- `n` bodies of the queue behind `at`: id and body in turn, from there on in a list; numbered behind a seq.
local function put_bodies(at, list, from, n) call('HSET', KEYS[at + M], unpack(list, from, from + 2 * n - 1)) end

-- The body of a message is about to become another: snapshots that show the message keep it.
local function keep_body(q, id, rec)
  local live = q.c[REQUIRED] > 0 and call('HGET', KEYS[q.at + E], LIVE)
  for at = 1, live and #live or 0, 16 do
    local kept = sub(live, at, at + 7) .. id
    if call('HEXISTS', KEYS[q.at + E], kept) == 1 and call('HEXISTS', KEYS[q.at + E], 'b' .. kept) == 0 then
      local body = q.at == 0 and bodies_of({id}, {rec})[1] or call('HGET', KEYS[q.at + M], id)
      if body then call('HSET', KEYS[q.at + E], 'b' .. kept, body) end
    end
  end
end
