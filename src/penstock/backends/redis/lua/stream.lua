-- A stream's numbers. Reads c m of one queue.
-- ARGV: 3 settings. Answers {0, time, entries, pending, consumers, waiting, not done}.
--: bodies
local q, no = open(0, 3)
if not q then return no end
local pending = GROUP ~= '' and redis.pcall('XPENDING', KEYS[M], GROUP) or {err = ''}
local consumers = GROUP ~= '' and redis.pcall('XINFO', 'CONSUMERS', KEYS[M], GROUP) or {}
local waiting = ready_of(q.c) + q.c[DELAYED]
local undone = waiting + q.c[LEASED] + q.c[DEAD]
for _, state in ipairs({1, 2, 3, 5}) do undone = undone + leaving(q.c, state) end
return {DONE_NOW, now, call('XLEN', KEYS[M]), pending.err and 0 or pending[1], #consumers, waiting, undone}
