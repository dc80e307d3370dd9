-- A deleted queue goes, but for what a snapshot shows of it: that stays under other names, for as long as one may be read.
local SHOWN_MS = 86400000

-- `at` and `aside` are where its keys start, and those other names of them.
local function delete_queue(at, aside)
  local shown = call('HEXISTS', KEYS[at + E], LIVE) == 1
  for k = 1, OF_QUEUE do
    if shown and call('EXISTS', KEYS[at + k]) == 1 then
      call('RENAME', KEYS[at + k], KEYS[aside + k])
      call('PEXPIRE', KEYS[aside + k], SHOWN_MS)
    else
      call('UNLINK', KEYS[at + k])
    end
  end
end
