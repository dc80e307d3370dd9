-- Whether a call that is sent again has appended already: its first entry is there. `at` as below.
local function appended(entries, at)
  if sub(ARGV[2], 17) ~= '1' or ARGV[at + 5] == '0' then return false end
  return call('HEXISTS', entries, ARGV[at + 6 + 2 * tonumber(ARGV[at + 4])]) == 1
end

-- Appending to a world: fenced by its record, which nobody else may have changed meanwhile.
-- `keys`: worlds, entries, frames, store. `at`: in ARGV of the list of keys that the caller seals with; name, record as it was and as it will be, frames, entries,
-- then id and frame of each, then id and place of each entry. Answers false where the record is another.
local function append_world(keys, at)
  if (call('HGET', keys[4], 'keys') or '') ~= ARGV[at] then return false end
  at = at + 1
  local name, frames, entries = ARGV[at], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  if (call('HGET', keys[1], name) or '') ~= ARGV[at + 1] then return false end
  call('HSET', keys[1], name, ARGV[at + 2])
  for i = 1, frames do call('XADD', keys[3], ARGV[at + 3 + 2 * i], 'f', ARGV[at + 4 + 2 * i]) end
  local first = at + 5 + 2 * frames
  for from = first, first + 2 * entries - 1, 2000 do
    call('HSET', keys[2], unpack(ARGV, from, math.min(from + 1999, first + 2 * entries - 1)))
  end
  return true
end
