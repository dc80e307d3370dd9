-- The jobs of bulk writes, one for each application and queue. KEYS: jobs, their times, jobs under way, store.
-- ARGV: 3 'begin', 'end' or 'drop', 4 the job, 5 version (8), 6 ticket, 7 what is committed, or what came of it, 8 and 9 how
-- many microseconds jobs with and without a name are known, 10 how many are known, 11 what names start with that were
-- given, 12 list of keys that its rows are sealed with. Answers {0, time, '' or what is known of the job: version (8),
-- ticket (32), '0' under way or '1' done, the rest}; {-2} where another list counts by now for a job that is to begin.
local what, job, version, ticket = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- Lua's numbers do not hold all versions.
local function later(a, b)
  local high, low = unpacked('>I4I4', a)
  local other_high, other_low = unpacked('>I4I4', b)
  return high > other_high or high == other_high and low > other_low
end
local known = call('HGET', KEYS[1], job)
local mine = known and sub(known, 1, 8) == version and sub(known, 9, 40) == ticket
if what == 'begin' then
  local is_under_way = known and sub(known, 41, 41) == '0'
  if known and (is_under_way or not later(version, known)) then return {DONE_NOW, now, known} end
  if (call('HGET', KEYS[4], 'keys') or '') ~= ARGV[12] then return {CHANGED} end
  call('HSET', KEYS[1], job, version .. ticket .. '0' .. ARGV[7])
  call('SADD', KEYS[3], job)
elseif what == 'end' then
  if not mine or sub(known, 41, 41) == '1' then return {DONE_NOW, now, known or ''} end
  call('HSET', KEYS[1], job, version .. ticket .. '1' .. ARGV[7])
  call('ZADD', KEYS[2], now, job)
  call('SREM', KEYS[3], job)
  -- What nobody will ask for any more makes room.
  local named, unnamed, most, start = now - tonumber(ARGV[8]), now - tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11]
  local beyond = call('ZCARD', KEYS[2]) - most
  for i, old in ipairs(call('ZRANGE', KEYS[2], 0, 99)) do
    local at = tonumber(call('ZSCORE', KEYS[2], old))
    local given = sub(old, 5, 4 + #start) == start
    if i <= beyond or at < named or given and at < unnamed then
      call('ZREM', KEYS[2], old)
      local row = call('HGET', KEYS[1], old)
      if row and sub(row, 41, 41) == '1' then call('HDEL', KEYS[1], old) end
    end
  end
elseif mine and sub(known, 41, 41) == '0' then
  call('HDEL', KEYS[1], job)
  call('SREM', KEYS[3], job)
end
return {DONE_NOW, now, ''}
