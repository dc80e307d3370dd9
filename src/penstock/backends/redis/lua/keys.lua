-- Another list of the keys that records are sealed with. KEYS: store.
-- ARGV: 3 list as it was, 4 as it will be ('' none), 5 '1' if the store is new, 6 its secret, sealed,
-- 7 run id of the server that it counts on ('' any). Answers {0} or {-2} where it is not as it was, or is another server.
if (call('HGET', KEYS[1], 'keys') or '') ~= ARGV[3] then
  -- Its answer was lost on the way.
  return {sub(ARGV[2], 17) == '1' and call('HGET', KEYS[1], 'keys') == ARGV[4] and DONE_NOW or CHANGED}
end
if ARGV[7] ~= '' and not string.find(call('INFO', 'server'), 'run_id:' .. ARGV[7], 1, true) then return {CHANGED} end
if ARGV[5] == '1' then
  if call('EXISTS', KEYS[1]) == 1 then return {CHANGED} end
  call('HSET', KEYS[1], 'secret', ARGV[6])
end
if ARGV[4] == '' then call('HDEL', KEYS[1], 'keys') else call('HSET', KEYS[1], 'keys', ARGV[4]) end
-- How far a rekeying was does not count for other keys.
call('HDEL', KEYS[1], 'rekey')
return {DONE_NOW}
