-- The sandbox of one script: what it can reach, how messages come in, and how its answers go out.
-- Everything here is trusted. The script reaches what is in `base`, its message, and nothing else.
--
-- Takes the hook's name, the source, the queue's name, both limits, and a function that reads a state value;
-- gives a function that runs the script on one packed message, or nil and what is wrong.

local hook, source, queue, limit_ms, memory_kib, ask = ...

local clock, getinfo = os.clock, debug.getinfo
local sub, gsub, pack, unpack = string.sub, string.gsub, string.pack, string.unpack
local concat, utf8_len, math_type, to_integer = table.concat, utf8.len, math.type, math.tointeger
local error, next, pcall, rawget, rawset, setmetatable = error, next, pcall, rawget, rawset, setmetatable
local tostring, type = tostring, type

local INSTRUCTIONS_PER_LOOK = 5000
local MOST_GETS = 100
local MOST_TEXT_BYTES = 500
local MOST_ANSWER_BYTES = 256 * 1024
local OUT_OF_MEMORY = "not enough memory"

-- Time ------------------------------------------------------------------------------------------------
-- Looked at every so many instructions. A call that stays inside a library function is the kernel's to end.

local since, stopped

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
  if not stopped then
    local now = clock()
    since = since or now
    if (now - since) * 1000 <= limit_ms then return end
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

local function get(key)
  if type(key) ~= "string" then error("penstock.get takes a string", 2) end
  gets = gets + 1
  if gets > MOST_GETS then error("penstock.get: more than " .. MOST_GETS .. " in one call", 2) end
  local value, problem = ask(key)
  if problem then error("penstock.get: " .. problem, 2) end
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
local chunk, problem = load("local _ENV = ...; " .. source, "=" .. hook, "t")
if not chunk then return nil, problem end

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

local HEAD = "<I4I4I2I2BddI2I2I2I4"
local NO_PAYLOAD = 0xffffffff

-- The message at hand, and where its variable parts are.
local raw, payload_at, payload_bytes, key_at, key_bytes, dedup_at, dedup_bytes, id_at, id_bytes
local list_at, throttled, headed

local function names_at(at)
  local names = {}
  for place = 1, throttled do names[place], at = unpack("<s2", raw, at) end
  return names, at
end

local function headers_at(at)
  local headers, name, value = {}, nil, nil
  for _ = 1, headed do
    name, value, at = unpack("<s2s4", raw, at)
    headers[name] = value
  end
  return headers
end

local function given_throttle_keys() return (names_at(list_at)) end

local function given_headers()
  local _, at = names_at(list_at)
  return headers_at(at)
end

-- Made when a script asks for them: few scripts look at everything.
local parts = {
  payload = function()
    return payload_bytes ~= NO_PAYLOAD and sub(raw, payload_at, payload_at + payload_bytes - 1) or nil
  end,
  fairness_key = function() return sub(raw, key_at, key_at + key_bytes - 1) end,
  dedup_id = function() return dedup_bytes > 0 and sub(raw, dedup_at, dedup_at + dedup_bytes - 1) or nil end,
  id = function() return id_bytes > 0 and sub(raw, id_at, id_at + id_bytes - 1) or nil end,
  throttle_keys = given_throttle_keys,
  headers = given_headers,
}

local lazily = {
  __index = function(given, name)
    local part = parts[name]
    if not part then return nil end
    local value = part()
    rawset(given, name, value)
    return value
  end,
}

-- What a script assigns is in the message itself, what it was given is behind it.
local function message_type(settable)
  local names = chosen(setmetatable({}, { __index = function() return true end }), settable)
  local can = settable ~= "" and "can be set: " .. settable or "nothing of it can"
  return {
    __newindex = function(message, name, value)
      if not names[name] then error("message." .. sub(tostring(name), 1, 60) .. " cannot be set; " .. can, 2) end
      rawset(message, name, value)
    end,
    __metatable = false,
  }
end

local function message_of(kind, given)
  kind.__index = given
  return setmetatable({}, kind)
end

local function given_at(at)
  local size_bytes, weight, priority, delay_s, ttl_s
  size_bytes, payload_bytes, key_bytes, weight, priority, delay_s, ttl_s, dedup_bytes, id_bytes, throttled, headed, at =
    unpack(HEAD, raw, at)
  payload_at = at
  key_at = payload_at + (payload_bytes ~= NO_PAYLOAD and payload_bytes or 0)
  dedup_at = key_at + key_bytes
  id_at = dedup_at + dedup_bytes
  list_at = id_at + id_bytes
  return setmetatable({
    queue = queue,
    size_bytes = size_bytes,
    weight = weight,
    priority = priority,
    delay_s = delay_s,
    ttl_s = ttl_s >= 0 and ttl_s or nil,
  }, lazily)
end

-- Answers ---------------------------------------------------------------------------------------------
-- MessagePack: nil for "as it is", or [code, text, fairness_key, weight, priority, delay_s, throttle_keys, headers].

local NIL = "\xc0"
local CHANGED, REFUSED, FAILED, STOPPED, RETRY, DEAD, DROP = 0, 1, 2, 3, 4, 5, 6

local function text_of(value, most)
  local text = type(value) == "string" and value or "a " .. type(value)
  if #text > most then text = sub(text, 1, most) .. "..." end
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

-- A table that a script was given may have been changed in place.
local function table_part(message, given, field, encode, original)
  local value = rawget(message, field) or rawget(given, field)
  if value == nil or same(value, original()) then return NIL end
  return encode(value, field)
end

local function scalar_part(message, field, encode)
  local value = rawget(message, field)
  return value == nil and NIL or encode(value, field)
end

local function changes(message, given)
  local throttle_keys = table_part(message, given, "throttle_keys", list, given_throttle_keys)
  local headers = table_part(message, given, "headers", map, given_headers)
  if next(message) == nil and throttle_keys == NIL and headers == NIL then return NIL end
  return pack(">BBB", 0x98, CHANGED, 0xa0)
    .. scalar_part(message, "fairness_key", name)
    .. scalar_part(message, "weight", whole)
    .. scalar_part(message, "priority", whole)
    .. scalar_part(message, "delay_s", number)
    .. throttle_keys
    .. headers
end

local function reason_of(value)
  if value == nil then return "" end
  if type(value) ~= "string" then error("the reason must be a string, not a " .. type(value), 0) end
  return value
end

local run = {}

local new = message_type("fairness_key, weight, priority, delay_s, throttle_keys, headers")

function run.on_enqueue()
  local given = given_at(1)
  local message = message_of(new, given)
  local verdict, reason = unless_stopped(defined()(message))
  if verdict == nil then return changes(message, given) end
  if verdict ~= "refuse" then error("answered " .. text_of(verdict, 40) .. "; accepted: refuse, or nothing", 0) end
  return answer(REFUSED, reason_of(reason))
end

local stored = message_type("")
local KINDS = { "nack", "reject", "lease_expired" }

function run.on_failure()
  local kind, attempts, enqueued_at_ns, asked_s, last, reason, consumer, at = unpack("<BI4i8dBs4s2", raw)
  local given = given_at(at)
  given.attempts, given.enqueued_at_ns = attempts, enqueued_at_ns
  local failure = {
    kind = KINDS[kind],
    reason = reason,
    consumer = consumer,
    delay_s = asked_s >= 0 and asked_s or nil,
    last = last == 1,
  }
  local verdict, detail = unless_stopped(defined()(message_of(stored, given), failure))
  if verdict == nil then return NIL end
  if verdict == "retry" then
    local delay_s = detail == nil and 0 or detail
    return pack(">BBBBBB", 0x96, RETRY, 0xa0, 0xc0, 0xc0, 0xc0) .. number(delay_s, "the delay")
  end
  if verdict == "dead_letter" then return answer(DEAD, reason_of(detail)) end
  if verdict == "drop" then return answer(DROP, reason_of(detail)) end
  error("answered " .. text_of(verdict, 40) .. "; accepted: retry, dead_letter, drop, or nothing", 0)
end

-- What went wrong, with the script's name before it if the error has none.
local function complaint(problem)
  if problem == OUT_OF_MEMORY then problem = "used more than " .. memory_kib .. " KiB of memory" end
  if type(problem) ~= "string" then problem = "raised a " .. type(problem) end
  return sub(problem, 1, #hook + 1) == hook .. ":" and problem or hook .. ": " .. problem
end

local function guarded(act)
  since, stopped, gets = nil, nil, 0
  local ok, result = pcall(act)
  if ok then return result end
  return answer(stopped and STOPPED or FAILED, complaint(stopped or result))
end

debug.sethook(watch, "", INSTRUCTIONS_PER_LOOK)

-- Without a message: whether the script defines what it should.
local step = run[hook]

return function(packed, now)
  if not packed then return guarded(function() defined() return NIL end) end
  raw, now_s = packed, now
  return guarded(step)
end
