-- The sandbox of one script: what it can reach, how messages come in, and how its answers go out.
-- Everything here is trusted. The script reaches what is in `base`, its message, and nothing else.
--
-- Takes the hook's name, the source, the queue's name, both limits, and a function that reads a state value;
-- gives a function that runs the script on one packed message, or nil and what is wrong.

local hook, source, queue, limit_ms, memory_kib, ask = ...

local clock, getinfo = os.clock, debug.getinfo
local byte, sub, gsub = string.byte, string.sub, string.gsub
local pack, unpack = string.pack, string.unpack
local concat, math_type, to_integer = table.concat, math.type, math.tointeger
local utf8_len, utf8_offset = utf8.len, utf8.offset
local error, next, pcall, rawget, rawset, setmetatable = error, next, pcall, rawget, rawset, setmetatable
local collect, tostring, type = collectgarbage, tostring, type

local INSTRUCTIONS_PER_LOOK = 5000
local MOST_GETS = 100
local MOST_TEXT_BYTES = 500
local MOST_ANSWER_BYTES = 256 * 1024
local OUT_OF_MEMORY = "not enough memory"

-- What went wrong, with the script's name before it if the error has none.
local function complaint(problem)
  if problem == OUT_OF_MEMORY then problem = "used more than " .. memory_kib .. " KiB of memory" end
  if type(problem) ~= "string" then problem = "raised a " .. type(problem) end
  return sub(problem, 1, #hook + 1) == hook .. ":" and problem or hook .. ": " .. problem
end

-- Time ------------------------------------------------------------------------------------------------
-- Looked at every so many instructions. A call that stays inside a library function is the kernel's to end.

local since, stopped
-- What runs the script catches its errors; what comes before and after in it, nobody does: nothing is raised there.
local guarded
local is_guarded = false
-- Where it was when most of its time had passed: it may be late without having been looked at again.
local seen

-- Where the script is, though it may have called something of this file.
local function place()
  local level, at = 3, getinfo(3, "Sl")
  while at do
    if at.short_src == hook then return hook .. ":" .. at.currentline end
    level = level + 1
    at = getinfo(level, "Sl")
  end
  return hook
end

local function watch()
  if not is_guarded or getinfo(2, "f").func == guarded then return end
  if not stopped then
    local now = clock()
    since = since or now
    local used_ms = (now - since) * 1000
    if used_ms <= limit_ms then
      if used_ms > limit_ms / 2 then seen = place() end
      return
    end
    stopped = place() .. ": stopped after " .. limit_ms .. " ms"
  end
  error(stopped, 0)
end

-- A script may catch its errors, but not that its time is up.
local function unless_stopped(...)
  if stopped then error(stopped, 0) end
  return ...
end

-- What a script can reach -----------------------------------------------------------------------------

local function frozen(name, content)
  return setmetatable({}, {
    __index = content,
    __newindex = function() error(name .. " cannot be changed", 2) end,
    __metatable = false,
  })
end

local function chosen(from, names)
  local content = {}
  for name in string.gmatch(names, "[%w_]+") do content[name] = from[name] end
  return content
end

local text_functions = chosen(string, "byte char find format gmatch gsub len lower match rep reverse sub upper")
debug.getmetatable("").__index = text_functions

local now_s, gets = 0, 0

-- Not by a level: one who returns what `get` gives is not there any more, and the level is of this file.
local function get(key)
  if type(key) ~= "string" then error(place() .. ": penstock.get takes a string", 0) end
  gets = gets + 1
  if gets > MOST_GETS then error(place() .. ": penstock.get: more than " .. MOST_GETS .. " in one call", 0) end
  local value, problem, no_room = ask(key)
  if no_room then
    collect()
    value, problem, no_room = ask(key)
    if no_room then error(OUT_OF_MEMORY, 0) end
  end
  if problem then error(place() .. ": penstock.get: " .. problem, 0) end
  return value
end

local base = chosen(_G, "assert error ipairs next pairs select tonumber tostring type")
base.pcall = function(...) return unless_stopped(pcall(...)) end
base.string = frozen("string", text_functions)
base.table = frozen("table", chosen(table, "concat insert pack remove sort unpack"))
base.math = frozen("math", chosen(math,
  "abs ceil exp floor fmod huge log max maxinteger min mininteger modf pi sqrt tointeger type ult"))
base.utf8 = frozen("utf8", chosen(utf8, "char charpattern codepoint codes len offset"))
base.penstock = frozen("penstock", { get = get, now = function() return now_s end })

-- The environment comes in as an argument, on the script's own first line: its lines keep their numbers.
-- By `pcall`, for errors of the compiler itself would have a traceback of this file.
local _, chunk, problem = pcall(load, "local _ENV = ...; " .. source, "=" .. hook, "t")
if not chunk then return nil, complaint(problem) end

-- Each call has globals of its own: nothing that a script sets is there for the next message.
local environment_of = { __index = base, __metatable = false }

local function defined()
  local environment = setmetatable({}, environment_of)
  chunk(environment)
  local found = rawget(environment, hook)
  if type(found) ~= "function" then error(hook .. ":1: no global function " .. hook .. " is defined", 0) end
  return found
end

-- Messages --------------------------------------------------------------------------------------------
-- A head of numbers, the payload, and in MessagePack: fairness key, headers, throttle keys, dedup id, id.

local HEAD = "<I4I4I2Bdd"
local NO_PAYLOAD = 0xffffffff

-- The message at hand: what its head says, and what has been read of the rest.
local raw, size_bytes, payload_bytes, weight, priority, delay_s, ttl_s, payload_at, texts_at, rest_at
local fairness_key, headers, throttle_keys, dedup_id, id
-- What the tables were that a script may change in place.
local headers_were, throttle_keys_were

local function text(at)
  local tag = byte(raw, at)
  if tag >= 0xa0 and tag <= 0xbf then
    local last = at + tag - 0xa0
    return sub(raw, at + 1, last), last + 1
  end
  if tag == 0xd9 then return unpack(">s1", raw, at + 1) end
  if tag == 0xda then return unpack(">s2", raw, at + 1) end
  if tag == 0xdb then return unpack(">s4", raw, at + 1) end
  if tag == 0xc0 then return nil, at + 1 end
  error("the message has something else than text where text belongs", 0)
end

-- How many follow: of pairs, or of items.
local function count(at, few)
  local tag = byte(raw, at)
  if tag >= few and tag <= few + 15 then return tag - few, at + 1 end
  if tag == 0xde or tag == 0xdc then return unpack(">I2", raw, at + 1) end
  if tag == 0xdf or tag == 0xdd then return unpack(">I4", raw, at + 1) end
  error("the message has something else than text where text belongs", 0)
end

-- Read when a script asks for one of them: few look at all.
local function read_headers()
  local at, left, name, value = texts_at + 1, nil, nil, nil
  headers, headers_were = {}, {}
  fairness_key, at = text(at)
  left, at = count(at, 0x80)
  for _ = 1, left do
    name, at = text(at)
    value, at = text(at)
    headers[name], headers_were[name] = value, value
  end
  rest_at = at
end

local function read_rest()
  if not headers then read_headers() end
  local at, left = rest_at, nil
  throttle_keys, throttle_keys_were = {}, {}
  left, at = count(at, 0x90)
  for place = 1, left do
    throttle_keys[place], at = text(at)
    throttle_keys_were[place] = throttle_keys[place]
  end
  dedup_id, at = text(at)
  id = text(at)
end

local function read(at)
  size_bytes, payload_bytes, weight, priority, delay_s, ttl_s, payload_at = unpack(HEAD, raw, at)
  texts_at = payload_at + (payload_bytes ~= NO_PAYLOAD and payload_bytes or 0)
end

local fields = {
  queue = function() return queue end,
  size_bytes = function() return size_bytes end,
  weight = function() return weight end,
  priority = function() return priority end,
  delay_s = function() return delay_s end,
  ttl_s = function() return ttl_s >= 0 and ttl_s or nil end,
  payload = function()
    return payload_bytes ~= NO_PAYLOAD and sub(raw, payload_at, payload_at + payload_bytes - 1) or nil
  end,
  fairness_key = function()
    if not headers then read_headers() end
    return fairness_key
  end,
  headers = function()
    if not headers then read_headers() end
    return headers
  end,
  throttle_keys = function()
    if not throttle_keys then read_rest() end
    return throttle_keys
  end,
  dedup_id = function()
    if not throttle_keys then read_rest() end
    return dedup_id
  end,
  id = function()
    if not throttle_keys then read_rest() end
    return id ~= "" and id or nil
  end,
}

-- What a script assigns is in the message itself; what it was given, it asks for.
local function message_type(settable, more)
  local names = chosen(setmetatable({}, { __index = function() return true end }), settable)
  local can = settable ~= "" and "can be set: " .. settable or "nothing of it can"
  return {
    __index = function(_, name)
      local field = fields[name] or more[name]
      return field and field()
    end,
    __newindex = function(message, name, value)
      if not names[name] then error("message." .. sub(tostring(name), 1, 60) .. " cannot be set; " .. can, 2) end
      rawset(message, name, value)
    end,
    __metatable = false,
  }
end

-- Answers ---------------------------------------------------------------------------------------------
-- MessagePack: nil for "as it is", or [code, text, fairness_key, weight, priority, delay_s, throttle_keys, headers].

local NIL = "\xc0"
local REFUSED, FAILED, STOPPED, DEAD, DROP = 1, 2, 3, 5, 6

local function text_of(value, most)
  local text = type(value) == "string" and value or "a " .. type(value)
  if #text > most then text = sub(text, 1, utf8_offset(text, 0, most + 1) - 1) .. "..." end
  return utf8_len(text) and text or (gsub(text, "[^\x20-\x7e]", "?"))
end

local function answer(code, text) return pack(">BBBs4", 0x92, code, 0xdb, text_of(text, MOST_TEXT_BYTES)) end

local function name(value, what)
  if type(value) ~= "string" then error(what .. " must be a string, not a " .. type(value), 0) end
  if not utf8_len(value) then error(what .. " is not UTF-8", 0) end
  return pack(">Bs4", 0xdb, value)
end

local function whole(value, what)
  local number = math_type(value) and to_integer(value)
  if not number then error(what .. " must be a whole number", 0) end
  return pack(">Bi8", 0xd3, number)
end

local function number(value, what)
  if not math_type(value) then error(what .. " must be a number", 0) end
  return pack(">Bd", 0xcb, value)
end

local function bounded(size, what)
  if size > MOST_ANSWER_BYTES then error(what .. " has more than " .. MOST_ANSWER_BYTES .. " bytes", 0) end
  return size
end

local function list(value, what)
  if type(value) ~= "table" then error(what .. " must be a list, not a " .. type(value), 0) end
  local items, size = {}, 0
  for at = 1, #value do
    items[at] = name(rawget(value, at), what .. "[" .. at .. "]")
    size = bounded(size + #items[at], what)
  end
  local count = 0
  for _ in next, value do count = count + 1 end
  if count ~= #items then error(what .. " must be a list", 0) end
  return pack(">BI4", 0xdd, count) .. concat(items)
end

local function map(value, what)
  if type(value) ~= "table" then error(what .. " must be a table, not a " .. type(value), 0) end
  local items, size = {}, 0
  for key, content in next, value do
    local item = name(key, "a name in " .. what) .. name(content, what .. "." .. sub(tostring(key), 1, 60))
    size = bounded(size + #item, what)
    items[#items + 1] = item
  end
  return pack(">BI4", 0xdf, #items) .. concat(items)
end

local function same(value, given)
  if type(value) ~= "table" then return false end
  for key, content in next, value do
    if given[key] ~= content then return false end
  end
  for key in next, given do
    if rawget(value, key) == nil then return false end
  end
  return true
end

local function scalar_part(message, field, encode)
  local value = rawget(message, field)
  return value == nil and NIL or encode(value, field)
end

-- A table that a script was given, if it was, may have been changed in place.
local function table_part(message, field, encode, given, were)
  local value = rawget(message, field)
  if value == nil then value = given end
  if value == nil or (value == given and same(value, were)) then return NIL end
  return encode(value, field)
end

local function changes(message)
  local new_headers = table_part(message, "headers", map, headers, headers_were)
  local new_keys = table_part(message, "throttle_keys", list, throttle_keys, throttle_keys_were)
  if next(message) == nil and new_keys == NIL and new_headers == NIL then return NIL end
  return "\x98\x00\xa0"
    .. scalar_part(message, "fairness_key", name)
    .. scalar_part(message, "weight", whole)
    .. scalar_part(message, "priority", whole)
    .. scalar_part(message, "delay_s", number)
    .. new_keys
    .. new_headers
end

local function reason_of(value)
  if value == nil then return "" end
  if type(value) ~= "string" then error("the reason must be a string, not a " .. type(value), 0) end
  return value
end

local run = {}

local new = message_type("fairness_key, weight, priority, delay_s, throttle_keys, headers", {})

function run.on_enqueue()
  read(1)
  local message = setmetatable({}, new)
  local verdict, reason = unless_stopped(defined()(message))
  if verdict == nil then return changes(message) end
  if verdict == "refuse" then return answer(REFUSED, reason_of(reason)) end
  error("answered " .. text_of(verdict, 40) .. "; accepted: refuse, or nothing", 0)
end

local KINDS = { "nack", "reject", "lease_expired" }
local attempts, enqueued_at_ns

local stored = message_type("", {
  attempts = function() return attempts end,
  enqueued_at_ns = function() return enqueued_at_ns end,
})

function run.on_failure()
  local kind, asked_s, last, reason, consumer, at
  kind, attempts, enqueued_at_ns, asked_s, last, reason, consumer, at = unpack("<BI4i8dBs4s2", raw)
  read(at)
  local failure = {
    kind = KINDS[kind],
    reason = reason,
    consumer = consumer,
    delay_s = asked_s >= 0 and asked_s or nil,
    last = last == 1,
  }
  local verdict, detail = unless_stopped(defined()(setmetatable({}, stored), failure))
  if verdict == nil then return NIL end
  if verdict == "retry" then return "\x96\x04\xa0\xc0\xc0\xc0" .. number(detail == nil and 0 or detail, "the delay") end
  if verdict == "dead_letter" then return answer(DEAD, reason_of(detail)) end
  if verdict == "drop" then return answer(DROP, reason_of(detail)) end
  error("answered " .. text_of(verdict, 40) .. "; accepted: retry, dead_letter, drop, or nothing", 0)
end

function guarded(act)
  since, stopped, seen, gets = nil, nil, nil, 0
  is_guarded = true
  local ok, result = pcall(act)
  is_guarded = false
  if ok then return result end
  return answer(stopped and STOPPED or FAILED, complaint(stopped or result))
end

debug.sethook(watch, "", INSTRUCTIONS_PER_LOOK)

local step = run[hook]

-- Without a message: whether the script defines what it should.
local function check()
  defined()
  return NIL
end

return function(packed, now)
  if packed == false then return seen or hook end
  if not packed then return guarded(check) end
  raw, now_s = packed, now
  local answer = guarded(step)
  -- The next message does not pay for what this one had.
  raw, headers, headers_were, throttle_keys, throttle_keys_were = nil, nil, nil, nil, nil
  return answer
end
