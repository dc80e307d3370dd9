-- Rows of a bulk write, put where only its commit finds them. KEYS: the chunk, the list of its write's chunks.
-- ARGV: 3 rows that the chunk must have, 4 milliseconds that it is kept, 5 name of the chunk, then the rows.
-- Answers {0} or {-2} where the chunk is not as it was.
local rows, given = call('LLEN', KEYS[1]), #ARGV - 5
-- Sent again: the answer was lost, not the rows.
if rows == tonumber(ARGV[3]) + given and sub(ARGV[2], 17, 17) == '1' then return {DONE_NOW} end
if rows ~= tonumber(ARGV[3]) then return {CHANGED} end
call('RPUSH', KEYS[1], unpack(ARGV, 6))
call('SADD', KEYS[2], ARGV[5])
call('PEXPIRE', KEYS[1], ARGV[4])
call('PEXPIRE', KEYS[2], ARGV[4])
return {DONE_NOW}
