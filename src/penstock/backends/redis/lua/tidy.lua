-- A round of a stream's own housekeeping. Touches c m s of one queue.
-- Consumers that have nothing and asked for nothing for a while go; what is pending for as long, but leased to nobody
-- (somebody read the stream by hand), is pending no more; and the group's lag, as the server tells it, is what waits.
-- ARGV: 3 settings, 4 idle milliseconds, 5 most pending ones to look at, 6 entry to go on behind, '0' for the first.
-- Answers {0, time, consumers removed, entries released, entry to go on behind}.
--: bodies
local q, no = open(0, 3)
if not q then return no end
local stream, idle, most, gone, free = KEYS[M], tonumber(ARGV[4]), tonumber(ARGV[5]), 0, {}
local function fields(flat)
  local out = {}
  for i = 1, #flat, 2 do out[flat[i]] = flat[i + 1] end
  return out
end

local consumers = GROUP ~= '' and redis.pcall('XINFO', 'CONSUMERS', stream, GROUP) or {err = ''}
if consumers.err then return {DONE_NOW, now, 0, 0, '0'} end
for _, row in ipairs(consumers) do
  local one = fields(row)
  if one.pending == 0 and one.idle >= idle then
    call('XGROUP', 'DELCONSUMER', stream, GROUP, one.name)
    gone = gone + 1
  end
end

local page = call('XPENDING', stream, GROUP, 'IDLE', idle, ARGV[6] == '0' and '-' or '(' .. ARGV[6], '+', most)
for _, row in ipairs(page) do
  local entry = call('XRANGE', stream, row[1], row[1])[1]
  local rec = entry and call('HGET', KEYS[S], entry[2][2] or '')
  if not rec or byte(rec) ~= 3 or name_of(rec) ~= row[1] then free[#free + 1] = row[1] end
end
if #free > 0 then call('XACK', stream, GROUP, unpack(free)) end

-- Older servers tell no lag, and take no such word.
local about = fields(call('XINFO', 'STREAM', stream))
if about['entries-added'] then
  local read = about['entries-added'] - ready_of(q.c) - q.c[DELAYED]
  redis.pcall('XGROUP', 'SETID', stream, GROUP, about['last-generated-id'], 'ENTRIESREAD', math.max(read, 0))
end
return {DONE_NOW, now, gone, #free, #page < most and '0' or page[#page][1]}
