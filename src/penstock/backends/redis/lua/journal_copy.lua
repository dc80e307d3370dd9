-- A journal is sealed anew: some of its frames go to a copy, which takes its place in the end.
-- KEYS: all of one queue, then the copy. ARGV: 3 settings, 4 last entry of the copy ('' to begin), 5 bytes in it,
-- 6 '1' to end: the frames that came meanwhile are sealed as they should be; then entry and frame of each.
-- Answers {0, time, bytes in it (-1: another has it), its last entry, '1' once it is the journal}.
local COPY, MOST = F + 10, 500
local q, no = open(0, 3)
if not q then
  call('UNLINK', KEYS[COPY])
  return no
end
local c, last, size = q.c, ARGV[4], tonumber(ARGV[5])
if last == '' then call('DEL', KEYS[COPY]) end
local top = call('XREVRANGE', KEYS[COPY], '+', '-', 'COUNT', 1)[1]
if (top and top[1] or '') ~= last then return {DONE_NOW, now, -1, '', '0'} end

local function add(entry, frame)
  call('XADD', KEYS[COPY], entry, 'f', frame)
  size, last = size + #frame, entry
end
for i = 7, #ARGV, 2 do add(ARGV[i], ARGV[i + 1]) end
if ARGV[6] ~= '1' then return {DONE_NOW, now, size, last, '0'} end

local from = last == '' and '-' or string.format('%.0f-0', tonumber(string.match(last, '^%d+')) + 1)
local rows = call('XRANGE', KEYS[J], from, '+', 'COUNT', MOST)
for _, row in ipairs(rows) do add(row[1], row[2][2]) end
if #rows == MOST then return {DONE_NOW, now, size, last, '0'} end
-- What was forgotten meanwhile goes from the copy too.
local over = call('XLEN', KEYS[COPY]) - call('XLEN', KEYS[J])
if over > 0 then
  local gone = call('XRANGE', KEYS[COPY], '-', '+', 'COUNT', math.min(over, MOST))
  for _, row in ipairs(gone) do size = size - #row[2][2] end
  call('XTRIM', KEYS[COPY], 'MAXLEN', call('XLEN', KEYS[COPY]) - #gone)
  if over > MOST then return {DONE_NOW, now, size, last, '0'} end
end
if call('XLEN', KEYS[J]) > 0 then call('RENAME', KEYS[COPY], KEYS[J]) else call('DEL', KEYS[COPY]) end
c[BYTES] = size
close(q)
return {DONE_NOW, now, size, last, '1'}
