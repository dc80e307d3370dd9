"""Bodies of functions that no queue should be given, and what is said of each when it has been stopped."""

from __future__ import annotations

#: It is stopped after its time, in its own instructions or inside a library function.
TIME = r"stopped (after 10 ms|in a library function, after more than 10 ms)"
MEMORY = r"used more than 1024 KiB of memory"


def filled(table: str) -> str:
    """Takes all the memory that there is, in ever smaller pieces, and keeps it in a table."""
    return f"""
      local t, n = {table}, 0
      for _, size in ipairs({{8192, 300, 0}}) do
        while pcall(function() n = n + 1 t['k' .. n] = ('x'):rep(size) .. n end) do end
      end
    """


FULL = filled("{}")

#: What it does -> (its body, what is said about it).
STOPPED: dict[str, tuple[str, str]] = {
    # -- time
    "loops for ever": ("while true do end", TIME),
    "loops by goto": ("::again:: goto again", TIME),
    "loops and catches its own end": ("while true do pcall(function() while true do end end) end", TIME),
    "catches its end in a tail call": (
        "local function f() return pcall(f) end while true do f() end",
        f"{TIME}|{MEMORY}|stack overflow",
    ),
    "calls itself by tail calls": ("local function f() return f() end f()", TIME),
    "sorts with a comparator that does not end": (
        "table.sort({3, 2, 1}, function() while true do end end)",
        TIME,
    ),
    "sorts much with a comparator that lies": (
        "local t = {3, 1, 2, 9, 7} while true do pcall(table.sort, t, function() return true end) end",
        TIME,
    ),
    "matches a pattern that explodes": (
        "string.find(string.rep('a', 30000), '.-.-.-.-.-b')",
        TIME,
    ),
    "matches a pattern that explodes, by a method": (
        "local s = ('a'):rep(30000) s:match('.*.*.*.*.*b')",
        TIME,
    ),
    "matches a pattern that explodes, and catches": (
        "while true do pcall(string.gsub, string.rep('a', 30000), '.-.-.-.-.-b', '') end",
        TIME,
    ),
    "replaces by a function that does not end": (
        "string.gsub('aaaa', '.', function() while true do end end)",
        TIME,
    ),
    "finds by plain text again and again": (
        "local s = ('a'):rep(200000) while true do s:find(('a'):rep(90000) .. 'b', 1, true) end",
        TIME,
    ),
    "joins again and again": (
        "local t = {} for i = 1, 10000 do t[i] = 'x' end while true do table.concat(t) end",
        TIME,
    ),
    # -- memory
    "makes one huge string": ("local s = string.rep('x', 1000000000)", MEMORY),
    "makes one huge string, by a method": ("local s = ('x'):rep(1e9, ',')", f"{MEMORY}|resulting string too"),
    "doubles a string": ("local s = 'x' while true do s = s .. s end", MEMORY),
    "fills a table": ("local t = {} for i = 1, 1e9 do t[i] = i end", f"{MEMORY}|{TIME}"),
    "fills a table with tables": ("local t = {} while true do t = {t} end", f"{MEMORY}|{TIME}"),
    "calls itself": ("local function f() return 1 + f() end f()", f"{MEMORY}|stack overflow"),
    "unpacks more than there is room for": ("table.unpack({}, 1, 100000000)", "too many results to unpack"),
    "takes a string to its bytes": (
        "string.byte(string.rep('x', 900000), 1, -1)",
        f"string slice too long|{MEMORY}",
    ),
    "makes a huge character list": (
        "local t = {} for i = 1, 200000 do t[i] = 0x10ffff end utf8.char(table.unpack(t))",
        f"{MEMORY}|too many results",
    ),
    "formats a width without end": ("string.format('%99999d', 1)", "invalid (conversion|format)"),
    "keeps more values than there is room for": (
        "local t = {} for i = 1, 25 do t[i] = penstock.get('large') end",
        MEMORY,
    ),
    "asks for values when its memory is full": (
        f"{FULL} for i = 1, 90 do penstock.get('large') end",
        f"{MEMORY}|{TIME}",
    ),
    "asks for a key that is none when its memory is full": (
        f"{FULL} for i = 1, 90 do penstock.get('') end",
        f"{MEMORY}|{TIME}|a key is 1 to 1,024 bytes",
    ),
    "asks and catches when its memory is full": (
        f"{FULL} for i = 1, 90 do pcall(penstock.get, 'large') pcall(penstock.get, '') end error('full')",
        f"full|{MEMORY}|{TIME}",
    ),
    "leaves a deep stack behind": (
        "local function f() return 1 + f() end pcall(f) error('deep')",
        f"deep|{MEMORY}|{TIME}",
    ),
    "makes closures without end": (
        "local t = {} while true do t[#t + 1] = function() return t end end",
        f"{MEMORY}|{TIME}",
    ),
    # -- ways out
    "runs a coroutine": (
        "coroutine.wrap(function() while true do end end)()",
        "nil value .global 'coroutine'",
    ),
    "sets a finalizer": (
        "setmetatable({}, {__gc = function() while true do end end})",
        "nil value .global 'setmetatable'",
    ),
    "closes a variable with a metamethod": (
        "local x <close> = setmetatable({}, {__close = function() end})",
        "nil value .global 'setmetatable'",
    ),
    "changes what strings are": (
        "getmetatable('').__index = function() while true do end end",
        "nil value .global 'getmetatable'",
    ),
    "replaces a library function": ("string.format = nil", "string cannot be changed"),
    "adds a library function": ("function table.evil() end", "table cannot be changed"),
    "replaces penstock.get": ("penstock.get = print", "penstock cannot be changed"),
    "inserts into a library": ("table.insert(string, 'x')", "string cannot be changed"),
    "sets past the guard": ("rawset(string, 'format', nil)", "nil value .global 'rawset'"),
    "dumps itself": ("string.dump(function() end)", "nil value .field 'dump'"),
    "dumps itself, by a method": ("return ('x'):dump()", "nil value .method 'dump'"),
    "loads text": ("load('return 1')()", "nil value .global 'load'"),
    "loads bytecode": ("load('\\27Lua')", "nil value .global 'load'"),
    "loads a file": ("dofile('/etc/passwd')", "nil value .global 'dofile'"),
    "loads a module": ("require('os')", "nil value .global 'require'"),
    "reaches for packages": ("package.loadlib('libc.so.6', 'system')", "nil value .global 'package'"),
    "ends the process": ("os.exit(0)", "nil value .global 'os'"),
    "starts a process": ("os.execute('touch /tmp/penstock-escaped')", "nil value .global 'os'"),
    "reads the environment": ("os.getenv('HOME')", "nil value .global 'os'"),
    "opens a file": ("io.open('/etc/passwd')", "nil value .global 'io'"),
    "opens a pipe": ("io.popen('id')", "nil value .global 'io'"),
    "takes the watch off": ("debug.sethook()", "nil value .global 'debug'"),
    "reaches for the registry": ("debug.getregistry()", "nil value .global 'debug'"),
    "stops the collector": ("collectgarbage('stop')", "nil value .global 'collectgarbage'"),
    "reaches for Python": ("python.eval('1')", "nil value .global 'python'"),
    "reaches for Python's builtins": ("python.builtins.open('/etc/passwd')", "nil value .global 'python'"),
    "reaches for Python by a function": (
        "local x = penstock.get.__globals__",
        "attempt to index a function value",
    ),
    "reaches for the globals of others": ("_G.on_enqueue = nil", "nil value .global '_G'"),
    "uses an error handler": ("xpcall(function() error() end, function() while true do end end)", "xpcall"),
    "asks for randomness": ("math.random()", "nil value .field 'random'"),
    "prints without end": ("while true do print('x') end", "nil value .global 'print'"),
    "asks for state without end": ("while true do penstock.get('key') end", "more than 100 in one call"),
    "asks for many keys": ("for i = 1, 1e9 do penstock.get('key' .. i) end", "more than 100 in one call"),
    "asks for a key that is none": ("penstock.get('')", "a key is 1 to 1,024 bytes"),
    "asks for a key that is no text": ("penstock.get('\\xff\\xfe')", "a key is 1 to 1,024 bytes"),
    "asks for a table": ("penstock.get({})", "penstock.get takes a string"),
    # -- errors
    "raises a table": ("error({code = 1})", "raised a table"),
    "raises nothing": ("error()", "raised a nil"),
    "raises a function": ("error(function() while true do end end)", "raised a function"),
    "raises a lot of text": ("error(string.rep('x', 100000))", r"xxx\.\.\.$"),
    "raises what is no text": ("error('\\xff\\xfe', 0)", r"\?\?"),
    "raises an object with its own words": (
        "error(setmetatable({}, {__tostring = function() while true do end end}))",
        "nil value .global 'setmetatable'",
    ),
    # -- answers
    "answers what is no answer": ("return 'launch'", "answered launch; accepted:"),
    "answers true": ("return true", "answered a boolean; accepted:"),
    "answers a function": ("return function() while true do end end", "answered a function; accepted:"),
    "answers a table that holds itself": ("local t = {} t[1] = t return t", "answered a table; accepted:"),
    "answers megabytes": ("return string.rep('x', 500000)", r"answered x+\.\.\.; accepted:"),
}

#: The same for what only a new message allows: it is changed.
CHANGES: dict[str, tuple[str, str]] = {
    "refuses with a table": ("return 'refuse', {}", "the reason must be a string, not a table"),
    "sets what does not exist": ("message.prority = 3", "message.prority cannot be set; can be set:"),
    "sets the payload": ("message.payload = 'other'", "message.payload cannot be set"),
    "sets the id": ("message.id = 'x'", "message.id cannot be set"),
    "sets by a table": ("message[{}] = 1", r"message.table: \S+ cannot be set"),
    "sets a weight that is no number": ("message.weight = 0 / 0", "weight must be a whole number"),
    "sets a weight that is half": ("message.weight = 1.5", "weight must be a whole number"),
    "sets a weight that is text": ("message.weight = '5'", "weight must be a whole number"),
    "sets a weight without bounds": (
        "message.weight = math.maxinteger",
        "weight is 9223372036854775807; acc",
    ),
    "sets a weight that overflows": (
        "message.weight = math.maxinteger + 1",
        "weight is -9223372036854775808",
    ),
    "sets a weight of nothing": ("message.weight = 0", "weight is 0; accepted"),
    "sets a priority out of range": ("message.priority = 10", "priority is 10; accepted"),
    "sets a priority below all": ("message.priority = -1", "priority is -1; accepted"),
    "sets a delay without end": ("message.delay_s = math.huge", "delay_s is inf; accepted"),
    "sets a delay that is no number": ("message.delay_s = 0 / 0", "delay_s is -?nan; accepted"),
    "sets a delay before now": ("message.delay_s = -1", "delay_s is -1.0; accepted"),
    "sets a key that is no text": ("message.fairness_key = '\\xc3\\x28'", "fairness_key is not UTF-8"),
    "sets a key with a surrogate": ("message.fairness_key = '\\xed\\xa0\\x80'", "fairness_key is not UTF-8"),
    "sets a key with a NUL": ("message.fairness_key = 'a\\0b'", "NUL"),
    "sets a key that is too long": ("message.fairness_key = string.rep('k', 1025)", "1025 bytes; accepted"),
    "sets a key that is a table": ("message.fairness_key = {}", "fairness_key must be a string, not a table"),
    "sets headers to text": ("message.headers = 'x'", "headers must be a table, not a string"),
    "sets a header to a number": (
        "message.headers.tries = 3",
        "headers.tries must be a string, not a number",
    ),
    "sets a header by a number": ("message.headers[1] = 'x'", "a name in headers must be a string"),
    "sets a header of Penstock's own": ("message.headers['penstock-origin'] = 'x'", "Penstock's own"),
    "sets headers that are too large": (
        "message.headers.big = string.rep('x', 70000)",
        r"headers have 7000\d bytes together; the limit is",
    ),
    "sets headers without end": (
        "for i = 1, 5000 do message.headers['h' .. i] = string.rep('x', 100) end",
        f"headers has more than|{MEMORY}|{TIME}",
    ),
    "fills the table of headers": (
        f"{filled('message.headers')} error('full')",
        f"full|{MEMORY}|{TIME}",
    ),
    "sets headers that hold themselves": (
        "message.headers.x = message.headers",
        "must be a string, not a table",
    ),
    "sets throttle keys to text": (
        "message.throttle_keys = 'x'",
        "throttle_keys must be a list, not a string",
    ),
    "sets throttle keys by name": ("message.throttle_keys = {a = 'b'}", "throttle_keys must be a list"),
    "sets throttle keys with a hole": ("message.throttle_keys = {'a', nil, 'c'}", "must be a (string|list)"),
    "sets too many throttle keys": (
        "local t = {} for i = 1, 17 do t[i] = 'k' .. i end message.throttle_keys = t",
        "at most 16 names",
    ),
    "sets throttle keys without end": (
        "local t = {} for i = 1, 20000 do t[i] = string.rep('k', 20) end message.throttle_keys = t",
        f"has more than|{MEMORY}|{TIME}",
    ),
}
