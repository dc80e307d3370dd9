"""What a script is shown, what it may reach, and what its answers do."""

from __future__ import annotations

import importlib
import itertools
import random
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import HookError, InvalidConfig, InvalidMessage, ManualClock, NewMessage, StorageCorrupt
from penstock.config import HookSettings
from penstock.hooks import child, pool
from penstock.hooks.helper import Helper
from penstock.hooks.pool import Reply, Source, _load
from penstock.hooks.scripts import Refused, Scripts, Verdict
from penstock.hooks.wire import KINDS, Answer, pack_new
from tests.hooks.hostile import filled
from tests.hooks.running import enqueued, failure, helper_of, on_enqueue, on_failure, refused, running

#: Shows the script's message in a header.
TELL = """
local function shown(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for name, content in pairs(value) do parts[#parts + 1] = name .. "=" .. content end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end
local out = {}
for _, name in ipairs({"id", "queue", "payload", "size_bytes", "fairness_key", "weight", "priority",
    "delay_s", "ttl_s", "dedup_id", "throttle_keys", "headers", "attempts"}) do
  out[#out + 1] = name .. ":" .. shown(message[name])
end
"""
#: Everything that scripts can reach; docs/hooks.md lists the same.
REACHABLE = {
    "": "assert error ipairs math next pairs pcall penstock select string table tonumber tostring type utf8",
    "string": "byte char find format gmatch gsub len lower match rep reverse sub upper",
    "table": "concat insert pack remove sort unpack",
    "math": "abs ceil exp floor fmod huge log max maxinteger min mininteger modf pi sqrt tointeger type ult",
    "utf8": "char charpattern codepoint codes len offset",
    "penstock": "get now",
}
#: What Lua has besides.
OUT_OF_REACH = """
_G _VERSION collectgarbage coroutine debug dofile getmetatable io load loadfile loadstring module newproxy os
package print python rawequal rawget rawlen rawset require setfenv getfenv setmetatable unpack warn xpcall
bit32 string.dump string.pack string.unpack string.packsize table.move math.random math.randomseed
"""


#: The answer of a script that changes nothing.
AS_IT_IS = b"\xc0"


@pytest.fixture(scope="module")
def scripts() -> Any:
    clock = ManualClock(1_700_000_000_500_000_000)
    with running(state={"key": b"value", "ümläut": b"\xff\x00", "big": bytes(70_000)}, clock=clock) as opened:
        yield opened


def told(scripts: Scripts, message: NewMessage) -> list[str]:
    (found,) = enqueued(scripts, on_enqueue(TELL + "message.headers.told = table.concat(out, '|')"), message)
    return found.headers["told"].split("|")


def test_a_script_is_shown_everything_of_a_message(scripts: Scripts) -> None:
    message = NewMessage(b"body", {"b": "2", "a": "1"}, "key", 3, ("t1", "t2"), 7, 1.5, 60, "d", "i" * 36)
    assert told(scripts, message) == [
        "id:" + "i" * 36,
        "queue:q",
        "payload:body",
        "size_bytes:4",
        "fairness_key:key",
        "weight:3",
        "priority:7",
        "delay_s:1.5",
        "ttl_s:60.0",
        "dedup_id:d",
        "throttle_keys:{1=t1,2=t2}",
        "headers:{a=1,b=2}",
        "attempts:nil",
    ]


def test_a_plain_message_has_defaults_and_nothing_for_what_it_lacks(scripts: Scripts) -> None:
    assert told(scripts, NewMessage()) == [
        "id:nil",
        "queue:q",
        "payload:",
        "size_bytes:0",
        "fairness_key:",
        "weight:1",
        "priority:4",
        "delay_s:0.0",
        "ttl_s:nil",
        "dedup_id:nil",
        "throttle_keys:{}",
        "headers:{}",
        "attempts:nil",
    ]


def test_a_script_is_shown_a_failure(scripts: Scripts) -> None:
    body = (
        "return 'drop', table.concat({failure.kind, failure.reason, failure.consumer, "
        "tostring(failure.delay_s), tostring(failure.last), message.attempts, message.enqueued_at_ns, "
        "message.id, message.dedup_id, "
        "message.headers.a, message.payload, message.fairness_key}, ' ')"
    )
    for kind in KINDS:
        (verdict,) = scripts.fail(on_failure(body), [failure(kind, "broke", b"x", attempts=3)])
        assert verdict == Verdict(
            "drop",
            0,
            f"{kind} broke worker nil false 3 5 00010203-0405-0607-0809-0a0b0c0d0e0f dedup b x key",
        )


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("", None),
        ("return nil", None),
        ("return 'retry'", Verdict("retry")),
        ("return 'retry', 1.5", Verdict("retry", 1_500_000_000)),
        ("return 'retry', 2", Verdict("retry", 2_000_000_000)),
        ("return 'dead_letter'", Verdict("dead_letter")),
        ("return 'dead_letter', 'why'", Verdict("dead_letter", 0, "why")),
        ("return 'drop', 'wéé'", Verdict("drop", 0, "wéé")),
    ],
)
def test_verdicts(answer: str, verdict: Verdict | None, scripts: Scripts) -> None:
    script = on_failure(answer)
    assert scripts.fail(script, [failure()]) == [verdict]
    assert script.failures == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("return 'retry', 'soon'", "the delay must be a number"),
        ("return 'retry', -1", "the delay is -1.0; accepted: 0 to"),
        ("return 'retry', 0/0", "the delay is -?nan; accepted: 0 to"),
        ("return 'retry', math.huge", "the delay is inf; accepted: 0 to"),
        ("return 'drop', 5", "the reason must be a string, not a number"),
        ("return 'refuse', 'no'", "answered refuse; accepted: retry, dead_letter, drop, or nothing"),
        ("message.priority = 9", "message.priority cannot be set; nothing of it can"),
        ("message.headers = {}", "message.headers cannot be set; nothing of it can"),
    ],
)
def test_verdicts_that_are_none_are_left_to_the_queue(
    answer: str, said: str, scripts: Scripts, caplog: pytest.LogCaptureFixture
) -> None:
    script = on_failure(answer)
    assert [scripts.fail(script, [failure()]) for _ in range(2)] == [[None], [None]]
    assert script.failures == 2
    assert re.search(said, script.last_failure)
    assert len(caplog.records) == 1  # The first of a row.


def test_refusals_say_why(scripts: Scripts) -> None:
    for answer, said in (("return 'refuse', 'wéé'", "wéé"), ("return 'refuse'", "no reason given")):
        (error,) = refused(scripts, on_enqueue(answer))
        assert isinstance(error, InvalidMessage)
        assert str(error) == f"queue 'q' refuses the message: {said}"


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("message.fairness_key = 'k'", NewMessage(fairness_key="k")),
        ("message.fairness_key = ''", NewMessage()),
        ("message.weight = 7", NewMessage(weight=7)),
        ("message.weight = 7.0", NewMessage(weight=7)),
        ("message.priority = 0", NewMessage(priority=0)),
        ("message.delay_s = 2", NewMessage(delay_s=2.0)),
        ("message.delay_s = 0.25", NewMessage(delay_s=0.25)),
        ("message.throttle_keys = {'a', 'b'}", NewMessage(throttle_keys=("a", "b"))),
        ("table.insert(message.throttle_keys, 'a')", NewMessage(throttle_keys=("a",))),
        ("message.headers = {b = '2', a = '1'}", NewMessage(headers={"a": "1", "b": "2"})),
        ("message.headers.a = '1'", NewMessage(headers={"a": "1"})),
        ("message.headers['ünï'] = 'cödé'", NewMessage(headers={"ünï": "cödé"})),
        ("message.weight = nil message.weight = 2 message.weight = 3", NewMessage(weight=3)),
        ("message.weight = 9 message.weight = nil", NewMessage()),
        ("message.fairness_key = message.headers.nothing", NewMessage()),
        ("message.headers = nil", NewMessage()),
    ],
)
def test_changes(body: str, changed: NewMessage, scripts: Scripts) -> None:
    assert enqueued(scripts, on_enqueue(body)) == [changed]


def test_headers_can_be_removed_and_replaced(scripts: Scripts) -> None:
    script = on_enqueue("message.headers.a = nil message.headers.b = 'new'")
    (found,) = enqueued(scripts, script, NewMessage(headers={"a": "1", "b": "2", "c": "3"}))
    assert found.headers == {"b": "new", "c": "3"}
    (found,) = enqueued(scripts, on_enqueue("message.headers = {}"), NewMessage(headers={"a": "1"}))
    assert found.headers == {}


def test_an_unchanged_message_is_the_very_same(scripts: Scripts) -> None:
    """It stays on the short path into the store."""
    message = NewMessage(b"x", {"a": "1"}, throttle_keys=["t"])
    script = on_enqueue("local h, t = message.headers, message.throttle_keys message.headers.b = nil")
    assert enqueued(scripts, script, message)[0] is message


def test_state_and_time(scripts: Scripts) -> None:
    body = "message.headers.a = penstock.get('key') message.headers.b = tostring(penstock.get('none'))"
    (found,) = enqueued(scripts, on_enqueue(body + " message.delay_s = penstock.now() - 1.7e9"))
    assert (found.headers, found.delay_s) == ({"a": "value", "b": "nil"}, 0.5)
    (found,) = enqueued(scripts, on_enqueue("message.weight = #penstock.get('ümläut')"))
    assert found.weight == 2
    (error,) = refused(scripts, on_enqueue("penstock.get('big')"))
    assert "on_enqueue:2: penstock.get: the value has more than 65536 bytes" in str(error)


def test_a_key_is_read_once_for_a_batch() -> None:
    keys: list[str] = []
    with running() as scripts:
        scripts._read_state = lambda key: keys.append(key) or b"v"  # type: ignore[func-returns-value]
        enqueued(scripts, on_enqueue("penstock.get('a') penstock.get('b')"), *[NewMessage()] * 250)
        assert keys == ["a", "b"]
        enqueued(scripts, on_enqueue("penstock.get('a')"))
        assert keys == ["a", "b", "a"]


def test_a_state_that_cannot_be_read_fails_the_call_and_not_the_next() -> None:
    with running() as scripts:

        def read(key: str) -> bytes:
            raise OSError("the disk is gone")

        scripts._read_state = read
        with pytest.raises(OSError, match="the disk is gone"):
            scripts.enqueue(on_enqueue("penstock.get('a')"), [NewMessage()])
        assert refused(scripts, on_enqueue("")) == [None]


def test_a_damaged_value_is_an_error_of_the_script_that_reads_it() -> None:
    def read(key: str) -> bytes | None:
        if key == "damaged":
            raise StorageCorrupt("a row is not what was written")
        return b"sound"

    with running() as scripts:
        scripts._read_state = read
        script = on_enqueue("message.headers.found = penstock.get(message.payload)")
        pid = None
        for _ in range(2):
            found = scripts.enqueue(script, [NewMessage(b"damaged"), NewMessage(b"other")])
            assert isinstance(found[0], Refused)
            said = "on_enqueue:2: penstock.get: the value is damaged; run check with repair"
            assert str(found[0].error) == f"queue 'q': {said}"
            assert isinstance(found[1], NewMessage)
            assert found[1].headers == {"found": "sound"}
            pid = pid or helper_of(scripts)
        assert helper_of(scripts) == pid
        verdicts = scripts.fail(on_failure("return 'drop', penstock.get('damaged')"), [failure()])
        assert verdicts == [None]


def test_exactly_what_is_listed_can_be_reached(scripts: Scripts) -> None:
    for library, names in REACHABLE.items():
        prefix = library and library + "."
        for name in names.split():
            (found,) = enqueued(scripts, on_enqueue(f"message.headers.kind = type({prefix}{name})"))
            assert found.headers["kind"] != "nil", name
    for name in OUT_OF_REACH.split():
        (found,) = enqueued(scripts, on_enqueue(f"message.headers.kind = type({name})"))
        assert found.headers["kind"] == "nil", name


def test_each_call_has_globals_of_its_own(scripts: Scripts) -> None:
    script = on_enqueue("count = (count or 0) + 1 kept = kept or message message.weight = count")
    assert [one.weight for one in enqueued(scripts, script, *[NewMessage()] * 5)] == [1] * 5


def test_what_is_outside_of_the_function_is_run_anew_for_each_message(scripts: Scripts) -> None:
    from penstock.hooks.scripts import Script

    text = "local n, seen = 0, {}\nfunction on_enqueue(m) n = n + 1 seen[n] = m m.weight = n + #seen - 1 end"
    assert [
        one.weight for one in enqueued(scripts, Script("q", "on_enqueue", text), *[NewMessage()] * 3)
    ] == [
        1,
        1,
        1,
    ]


def test_errors_keep_the_lines_of_the_script(scripts: Scripts) -> None:
    for line in (2, 3, 10):
        (error,) = refused(scripts, on_enqueue("\n" * (line - 2) + "error('here')"))
        assert str(error) == f"queue 'q': on_enqueue:{line}: here"


def test_an_error_of_get_is_never_of_a_line_that_is_not_the_scripts(scripts: Scripts) -> None:
    for body, place in (
        ("local v = penstock.get(1)", "on_enqueue:2"),
        ("return penstock.get(1)", "on_enqueue"),
    ):
        (error,) = refused(scripts, on_enqueue(body))
        assert str(error).startswith(f"queue 'q': {place}: penstock.get takes a string")


def test_a_loop_that_is_over_before_it_is_looked_at_again_is_named_by_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lua: Any = importlib.import_module("lupa.lua54")
    sandbox = Path(child.__file__).with_name("sandbox.lua").read_bytes()
    one = child.Child(None, lua, sandbox, 100, 1 << 20)  # type: ignore[arg-type]  # It asks for no state.
    # However long it really took, each look at the time is a second after the one before.
    ticks = itertools.count()
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=ticks.__next__, process_time=ticks.__next__))
    own: list[bytes] = []
    turns, said = 10_000, b""
    while b"on_enqueue:2: stopped after 100 ms" not in said:
        source = f"function on_enqueue(m)\n  for i = 1, {turns} do end\nend".encode()
        assert one._loaded(turns, b"on_enqueue", b"q", source) == AS_IT_IS
        script = one._script

        def call(message: Any, now_s: float, script: child.Script = script) -> bytes:
            answer = script.call(message, now_s)
            own.append(answer if message else AS_IT_IS)
            return answer

        (said,) = one._slice(script._replace(call=call), [pack_new(NewMessage())], 0.0)
        turns = turns * 6 // 5
    assert set(own) == {AS_IT_IS}  # It was never stopped by its own limit, which would have told the line.


def test_long_texts_are_cut_between_characters(scripts: Scripts) -> None:
    for letter in ("e", "é", "€", "🙂"):
        for before in ("", "x", "xx"):
            (verdict,) = scripts.fail(
                on_failure(f"return 'drop', '{before}' .. ('{letter}'):rep(600)"), [failure()]
            )
            assert verdict is not None
            assert re.fullmatch(f"{before}{letter}+\\.\\.\\.", verdict.reason)
            assert 497 <= len(verdict.reason.encode()) - 3 <= 500


def test_what_is_nested_too_deeply_is_named(scripts: Scripts) -> None:
    with pytest.raises(InvalidConfig, match=r"^queue 'q': on_enqueue(:\d+)?: C stack overflow$"):
        scripts.check(on_enqueue("x = " + "(" * 5000 + "1" + ")" * 5000))


def test_a_payload_may_have_any_bytes(scripts: Scripts) -> None:
    payload = bytes(range(256))
    body = "for i = 1, 256 do assert(message.payload:byte(i) == i - 1) end message.weight = #message.payload"
    assert enqueued(scripts, on_enqueue(body), NewMessage(payload))[0].weight == 256


@given(
    st.text(max_size=20).filter(lambda text: "\0" not in text),
    st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=20), max_size=5),
    st.lists(st.text(min_size=1, max_size=10), max_size=5),
    st.binary(max_size=100),
)
def test_whatever_a_message_has_goes_in_and_comes_out_the_same(
    key: str, headers: dict[str, str], throttle_keys: list[str], payload: bytes
) -> None:
    def good(name: str) -> bool:
        return "\0" not in name and not name.startswith("penstock-")

    headers = {name: value for name, value in headers.items() if good(name)}
    throttle_keys = [name for name in throttle_keys if good(name)]
    message = NewMessage(payload, headers, key, 5, throttle_keys, 3, 1.5)
    copy = on_enqueue(
        "message.fairness_key = message.fairness_key message.weight = message.weight "
        "message.priority = message.priority message.delay_s = message.delay_s "
        "local h, t = {}, {} for k, v in pairs(message.headers) do h[k] = v end "
        "for i, v in ipairs(message.throttle_keys) do t[i] = v end "
        "message.headers, message.throttle_keys = h, t"
    )
    (found,) = enqueued(SHARED, copy, message)
    assert (found.headers, list(found.throttle_keys)) == (headers, throttle_keys)
    assert (found.fairness_key, found.weight, found.priority, found.delay_s) == (key, 5, 3, 1.5)
    assert found.payload == payload


SHARED = Scripts(HookSettings(), ManualClock(), lambda key: None)


def teardown_module() -> None:
    SHARED.close()


def test_a_valid_message_that_cannot_be_packed_is_not_let_in_unseen(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.hooks import wire

    monkeypatch.setattr(wire, "MOST_PACKED_BYTES", 10)
    found = scripts.enqueue(on_enqueue(""), [NewMessage(b"x"), NewMessage(weight=-1)])
    assert isinstance(found[0], Refused)
    assert isinstance(found[0].error, HookError)
    assert found[1] == NewMessage(weight=-1)  # It says itself what is wrong with it.


def test_the_largest_message_there_can_be_goes_through(scripts: Scripts) -> None:
    headers = {f"h{n:05d}": "v" * 100 for n in range(600)}
    (found,) = enqueued(
        scripts, on_enqueue("message.weight = 2"), NewMessage(bytes(65_536), headers, "k" * 1024)
    )
    assert (found.weight, found.headers) == (2, headers)


@pytest.mark.parametrize(
    "leaves", [filled("message.headers"), "local function f() return 1 + f() end pcall(f)"]
)
def test_what_a_call_leaves_in_memory_is_not_the_next_ones(leaves: str) -> None:
    """Large messages behind those that fill all there is: each has the whole limit to itself."""
    script = on_enqueue(f"if message.payload == 'evil' then {leaves} error('full') end")
    evil, good = NewMessage(b"evil", {"a": "b"}), NewMessage(b"g" * 60_000, {"c": "d" * 60_000})
    with running(HookSettings(time_limit_ms=1000)) as scripts:
        errors = refused(scripts, script, evil, good, evil, good)
        assert [error and str(error).rpartition(": ")[2] for error in errors] == ["full", None] * 2
        pid = helper_of(scripts)
        assert refused(scripts, script, good) == [None]
        assert helper_of(scripts) == pid


def test_limits_can_be_set() -> None:
    loop = on_enqueue("local n = 0 for i = 1, 3000000 do n = n + i end message.weight = 2")
    big = on_enqueue("local s = string.rep('x', 3000000) message.weight = 2")
    with running() as scripts:
        assert "stopped after 10 ms" in str(refused(scripts, loop)[0])
        assert "used more than 1024 KiB" in str(refused(scripts, big)[0])
    with running(HookSettings(time_limit_ms=1000, memory_limit=2**23)) as scripts:
        assert enqueued(scripts, loop)[0].weight == 2
        assert enqueued(scripts, big)[0].weight == 2


def test_more_scripts_than_a_helper_keeps_take_turns() -> None:
    with running() as scripts:
        many = [on_enqueue(f"message.headers.n = '{n}'") for n in range(child.MOST_SCRIPTS + 10)]
        for _ in range(2):
            found = [enqueued(scripts, script)[0].headers["n"] for script in many]
            assert found == [str(n) for n in range(len(many))]


def test_the_scripts_that_are_run_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that makes room for another is the one that was not run for longest."""
    loads: list[int] = []

    def load(helper: Helper, script: Source, reply: Reply) -> Answer | None:
        loads.append(script.number)
        return _load(helper, script, reply)

    with running() as scripts:
        many = [on_enqueue("message.weight = 2") for _ in range(child.MOST_SCRIPTS)]
        for script in many:
            enqueued(scripts, script)
        enqueued(scripts, many[0])
        enqueued(scripts, on_enqueue("message.weight = 2"))
        monkeypatch.setattr(pool, "_load", load)
        for script in (many[0], many[2], many[1]):
            enqueued(scripts, script)
        assert loads == [many[1].source.number]


def test_threads_get_their_own_answers() -> None:
    with running() as scripts:
        wrong: list[object] = []

        def work(name: str, seed: int) -> None:
            rng = random.Random(seed)
            script = on_enqueue(f"message.headers.by = '{name}' .. message.payload")
            for _ in range(20):
                count = rng.randrange(1, 250)
                found = enqueued(scripts, script, *[NewMessage(b"%d" % n) for n in range(count)])
                expected = [f"{name}{n}" for n in range(count)]
                wrong.extend([] if [one.headers["by"] for one in found] == expected else [name])

        threads = [threading.Thread(target=work, args=(name, seed)) for seed, name in enumerate("abcd")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert wrong == []
