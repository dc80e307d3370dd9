-- Append to a world. KEYS: worlds, entries, frames of the world, store. ARGV: 3 on, see _worlds.lua.
-- Answers {0} or {-2} where the world is not as it was.
--: worlds
local sent_again = sub(ARGV[2], 17) == '1'
if sent_again and call('HGET', KEYS[1], ARGV[4]) == ARGV[6] then return {DONE_NOW} end
if appended(KEYS[2], 3) then return {DONE_NOW} end
if not append_world(KEYS, 3) then return {CHANGED} end
return {DONE_NOW}
