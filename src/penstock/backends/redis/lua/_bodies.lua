-- Bodies, as many as one answer should have: the first of them at least.
local MOST_BYTES, LARGE_BYTES = 8388608, 65536
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
