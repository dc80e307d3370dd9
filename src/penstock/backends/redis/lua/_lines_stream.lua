-- Lines of further groups, made and dropped.
local SHARED = {[M] = true, [U] = true, [P] = true, [R] = true}

-- A line begins: what came up to this seq is yet to be given to it.
local function begin_line(at, boundary) call('HSET', KEYS[at + GIVEN], 'b', string.format('%.0f', boundary)) end

-- Nothing is left of a line, nor of a group of that name, which may have been made by hand.
local function drop_line(at, group)
  for k = 1, OF_QUEUE do
    if not SHARED[k] then call('UNLINK', KEYS[at + k]) end
  end
  redis.pcall('XGROUP', 'DESTROY', KEYS[at + M], group)
end
