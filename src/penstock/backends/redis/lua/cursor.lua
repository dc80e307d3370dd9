-- Open, move or drop a cursor. Touches c w of one queue.
-- ARGV: 3 settings, 4 name, 5 what ('open', 'commit', 'drop', 'all'), 6 '1' if required, or the seq.
-- Answers {0, time, position (-1 none, -2 no such event), required, low, high}, or {0, time, names and records}.
local q, no = open(0, 3)
if not q then return no end
local c, name, what = q.c, ARGV[4], ARGV[5]
if what == 'all' then return {DONE_NOW, now, call('HGETALL', KEYS[W])} end
local raw = call('HGET', KEYS[W], name)
local position, required = -1, 0
if raw then
  local row = cmsgpack.unpack(raw)
  position, required = row[1], row[2]
end
local was = required
if what == 'drop' then
  call('HDEL', KEYS[W], name)
  required = 0
elseif what == 'open' then
  if position < 0 then position = c[BASE] end
  if ARGV[6] == '1' then required = 1 end
  call('HSET', KEYS[W], name, cmsgpack.pack({position, required}))
elseif position >= 0 then
  local seq = tonumber(ARGV[6])
  if seq < c[BASE] or seq > c[SEQ] then return {DONE_NOW, now, -2, 0, c[BASE], c[SEQ]} end
  position = seq
  go_on_when_full(W) -- What it has read goes.
  call('HSET', KEYS[W], name, cmsgpack.pack({position, required}))
end
if required ~= was then
  c[REQUIRED] = c[REQUIRED] + required - was
  close(q)
end
return {DONE_NOW, now, position, required, c[BASE], c[SEQ]}
