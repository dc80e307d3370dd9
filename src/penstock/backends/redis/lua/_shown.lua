-- A queue as a snapshot shows it: what has changed since is kept, what has not stands where it stood.
-- Answers the snapshot's number and last seq; or nothing, and why.
local ENDED_SNAPSHOT = -3
local function shown(place)
  local raw, number = call('GET', KEYS[C]), ARGV[place + 1]
  local c = raw and cmsgpack.unpack(raw)
  if not c or c[NUMBER] ~= tonumber(ARGV[place]) then return nil, nil, {NOT_FOUND} end
  if c[SETTINGS] < 0 then return nil, nil, {CHANGED} end
  local live = call('HGET', KEYS[E], LIVE) or ''
  for at = 1, #live, 16 do
    if sub(live, at, at + 7) == number then return number, u64(live, at + 8) end
  end
  return nil, nil, {ENDED_SNAPSHOT}
end
