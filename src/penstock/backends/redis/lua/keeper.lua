-- Who keeps house, for a while: whoever asks first. KEYS: sweeper. ARGV: 3 who asks, 4 milliseconds.
-- Answers {0, 1 or 0}. A server without memory is asked as well: housekeeping is what makes room.
local keeper = call('GET', KEYS[1])
if keeper then return {DONE_NOW, keeper == ARGV[3] and 1 or 0} end
go_on_when_full(1)
call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
return {DONE_NOW, 1}
