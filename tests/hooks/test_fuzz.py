"""Scripts made of anything: each is refused or runs, and the helper answers the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import HookError, InvalidConfig, InvalidMessage, ManualClock, NewMessage
from penstock.config import HookSettings
from penstock.hooks.scripts import Refused, Script, Scripts
from tests.hooks.running import enqueued, failure, on_enqueue

VALUES = """
message failure message.headers message.throttle_keys message.payload message.id string table penstock nil
true false 0 1 -1 1e308 (0/0) 1e9 math.huge math.maxinteger 'a' '\\0' '\\xff' 'retry' 'refuse' 'drop' {}
{1,2} {a='b'} function()end _ENV print ...
"""
CALLS = """
string.rep string.find string.gsub string.format string.byte string.char table.concat table.sort table.unpack
table.insert pcall error select tostring tonumber pairs next penstock.get math.floor utf8.char utf8.codepoint
"""
TARGETS = """
message.weight message.priority message.delay_s message.fairness_key message.headers message.headers.x
message.throttle_keys message.payload message.nothing x string.rep penstock.get x.y message[x]
"""


def joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map("".join)


def sampled(options: str) -> st.SearchStrategy[str]:
    return st.sampled_from(options.split())


expressions = st.recursive(
    sampled(VALUES),
    lambda inner: st.one_of(
        st.tuples(sampled(CALLS), st.lists(inner, max_size=3)).map(
            lambda one: f"{one[0]}({','.join(one[1])})"
        ),
        st.tuples(inner, sampled(".. + // == and [ ~"), inner).map(
            lambda one: f"({one[0]} {one[1]} {one[2]}{']' if one[1] == '[' else ''})"
        ),
    ),
    max_leaves=5,
)
statements = st.recursive(
    st.one_of(
        joined(sampled(TARGETS), st.just(" = "), expressions),
        joined(st.just("local x = "), expressions),
        joined(st.just("do return "), expressions, st.just(", "), expressions, st.just(" end")),
    ),
    lambda inner: st.one_of(
        joined(st.just("for i = 1, "), expressions, st.just(" do "), inner, st.just(" end")),
        joined(st.just("for k, v in pairs("), expressions, st.just(") do "), inner, st.just(" end")),
        joined(st.just("while "), expressions, st.just(" do "), inner, st.just(" end")),
        joined(st.just("pcall(function() "), inner, st.just(" end)")),
        joined(inner, st.just("\n"), inner),
    ),
    max_leaves=6,
)
anything = st.one_of(
    statements,
    statements,
    st.text(max_size=100),
    st.binary(max_size=100).map(lambda raw: raw.decode("latin-1")),
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Scripts]:
    scripts = Scripts(HookSettings(), ManualClock(), {"k": b"v"}.get)
    yield scripts
    scripts.close()


def try_out(shared: Scripts, text: str) -> None:
    for hook, parameters in (("on_enqueue", "message"), ("on_failure", "message, failure")):
        whole = Script("q", hook, text)
        body = Script("q", hook, f"function {hook}({parameters}) {text}\nend")
        for script in (whole, body):
            try:
                shared.check(script)
            except InvalidConfig:
                continue
            if hook == "on_enqueue":
                message = NewMessage(b"x", {"a": "b"}, throttle_keys=["t"])
                for one in shared.enqueue(script, [message, message]):
                    assert isinstance(one, NewMessage | Refused)
                    assert not isinstance(one, Refused) or isinstance(one.error, HookError | InvalidMessage)
            else:
                assert len(shared.fail(script, [failure(), failure("lease_expired")])) == 2
    assert enqueued(shared, on_enqueue("message.headers.seen = 'yes'"))[0].headers == {"seen": "yes"}


QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(anything)
def test_whatever_a_script_is_made_of_it_is_refused_or_runs(shared: Scripts, text: str) -> None:
    try_out(shared, text)


@pytest.mark.soak
@settings(QUICK, max_examples=5_000)
@given(anything)
def test_a_great_many_scripts_are_refused_or_run(shared: Scripts, text: str) -> None:
    try_out(shared, text)
