-- Where bodies are: in a hash, by id. Scripts know no more of it than these names; _bodies_stream.lua has the same.
local OF_QUEUE, IN_STREAM = F + 9, false
local MOST_BYTES, LARGE_BYTES = 8388608, 65536

-- What a record ends with to lead to its body, and what one of the same body has: here the id does.
local function entry_for() return '' end
local function entry_of() return '' end

-- `n` bodies of the queue behind `at`: id and body in turn, from there on in a list; numbered behind `seq`.
local function put_bodies(at, list, from, n) call('HSET', KEYS[at + M], unpack(list, from, from + 2 * n - 1)) end
local function swap_body(at, id, _, body) call('HSET', KEYS[at + M], id, body) end
local function drop_bodies(at, ids) call('HDEL', KEYS[at + M], unpack(ids)) end

-- These are leased no more; these, from there on in a list, neither leased nor there any more.
local function release() end
local function finish(at, list, from) call('HDEL', KEYS[at + M], unpack(list, from)) end

-- Bodies, as many as one answer should have: the first of them at least.
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

local function body_at(at, id) return call('HGET', KEYS[at + M], id) end

-- The same of messages that are leased from now on.
local claim = bodies_of

local function beyond() return {}, {} end
