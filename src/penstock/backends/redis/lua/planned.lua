-- A plan is carried out, and forgotten. KEYS: plan. ARGV: 3 the plan. Answers {0}.
if call('GET', KEYS[1]) == ARGV[3] then call('DEL', KEYS[1]) end
return {DONE_NOW}
