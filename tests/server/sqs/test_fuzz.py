"""Requests of any form, in both protocols: none fails the server, and what is refused changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Penstock
from penstock.clock import ManualClock
from penstock.server.calls import StoreCalls
from penstock.server.credentials import NoCredentials
from penstock.server.endpoint import Request, Response
from penstock.server.sqs import moves
from penstock.server.sqs.actions import ACTIONS
from penstock.server.sqs.endpoint import SqsEndpoint
from penstock.server_config import Limits, ServerSettings

ARN = "arn:aws:sqs:us-east-1:000000000000:"
URL = "http://here/000000000000/"
QUEUES = ("q", "dead", "f.fifo")
ATTRIBUTES = ("VisibilityTimeout", "DelaySeconds", "RedrivePolicy", "RedriveAllowPolicy", "Policy", "All")


class Fuzzed:
    """An endpoint over a store in memory, on an event loop of its own."""

    def __init__(self, ps: Penstock, clock: ManualClock) -> None:
        self.ps = ps
        self.runner = asyncio.Runner()
        self.calls = StoreCalls(ps, Limits())
        self.endpoint = SqsEndpoint(ps, self.calls, NoCredentials(), ServerSettings(), clock)

    def tried(self, headers: dict[str, str], query: str, body: bytes) -> None:
        self._made_whole()
        before = self._state()
        request = Request("r-1", "POST", "/", query, headers, body, "127.0.0.1", None, lambda: True)
        answer = self.runner.run(self._answered(request))
        assert answer.status < 500, (answer.status, answer.body)
        if answer.status >= 400:
            assert self._state() == before

    async def _answered(self, request: Request) -> Response:
        answer = await self.endpoint.answer(request)
        while self.endpoint._moves._running:  # What it started is no matter of the next one.
            await asyncio.sleep(0.001)
        return answer

    def _made_whole(self) -> None:
        there = {queue.name for queue in self.ps.queues()}
        for name in ("dead", "f.fifo", "q"):
            if name not in there:
                dead = {"dead_letter": "dead"} if name == "q" else {}
                self.ps.create_queue(name, fifo=name.endswith(".fifo"), **dead)

    def _state(self) -> Any:
        """Every change of a message is an event of its queue's journal, and has the next number."""
        queues = self.ps.queues()
        numbers = {queue.name: self.ps.queue(queue.name).stats().last_seq for queue in queues}
        return queues, numbers, [self.ps.state.get(moves._key(name)) for name in numbers]

    def close(self) -> None:
        self.runner.run(self.endpoint.stop())
        self.runner.run(asyncio.to_thread(self.calls.close))
        self.runner.close()


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    clock = ManualClock()
    with pytest.MonkeyPatch.context() as patch, penstock.open("memory:", clock=clock) as ps:
        patch.setattr(moves, "PAUSE_S", 0.001)
        made = Fuzzed(ps, clock)
        yield made
        made.close()


_junk = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "0", "-1", "99999999999", "1e3", "\0", "\ud800", "٣", "."])
)
_good = st.sampled_from(
    [URL + name for name in (*QUEUES, "none", "")]
    + [ARN + name for name in QUEUES]
    + [
        *QUEUES,
        "All",
        "a",
        "30",
        "true",
        "String",
        "Binary",
        "Number",
        "Penstock.Weight",
        "eyJ9",
        "111122223333",
    ]
    + [
        json.dumps({"deadLetterTargetArn": f"{ARN}dead", "maxReceiveCount": 3}),
        '{"redrivePermission":"denyAll"}',
    ]
)
_numbers = st.one_of(st.sampled_from([0, 1, 10, 30, -1, 43_201, 2**63, 2**70]), st.floats(allow_nan=False))
_leaf = st.one_of(_good, _junk, _numbers, st.none(), st.booleans())
_names = sorted(
    {field.encode_name for action in ACTIONS.values() for field in msgspec.structs.fields(action.arguments)}
    | {"Id", "DataType", "StringValue", "BinaryValue", *ATTRIBUTES}
)
_value = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(_names), _junk), inner, max_size=4),
    ),
    max_leaves=12,
)


@st.composite
def _arguments(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Of an action; often a good one but for one argument."""
    action = draw(st.sampled_from(sorted(ACTIONS)))
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(ACTIONS[action].arguments):
        if field.encode_name.endswith("Url"):
            found[field.encode_name] = URL + draw(st.sampled_from(QUEUES))
        elif field.required or draw(st.booleans()):
            found[field.encode_name] = draw(_value)
    if draw(st.booleans()) and found:
        found[draw(st.sampled_from(sorted(found)))] = draw(_value)
    return action, found


def _fields(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for n, (key, inner) in enumerate(value.items(), 1):
            yield from _fields(key, f"{name}.{n}.Name")
            yield from _fields(inner, f"{name}.{n}.Value")
            yield from _fields(inner, f"{name}.{n}.{key}")
    elif isinstance(value, list):
        for n, inner in enumerate(value, 1):
            yield from _fields(inner, f"{name}.{n}")
    else:
        yield name, str(value)


def _form(action: str, arguments: dict[str, Any]) -> bytes:
    singular = {"Entries": f"{action}RequestEntry", "Tags": "Tag", "Attributes": "Attribute"}
    pairs = [("Action", action)]
    for name, value in arguments.items():
        listed = isinstance(value, dict | list)
        pairs += _fields(value, singular.get(name, name.removesuffix("s")) if listed else name)
    return "&".join(
        f"{quote(name, errors='replace')}={quote(value, errors='replace')}" for name, value in pairs
    ).encode()


def _try_arguments(fuzzed: Fuzzed, made: tuple[str, dict[str, Any]]) -> None:
    action, arguments = made
    fuzzed.tried({"x-amz-target": f"AmazonSQS.{action}"}, "", json.dumps(arguments).encode())
    fuzzed.tried({}, "", _form(action, arguments))


def _try_bytes(fuzzed: Fuzzed, action: str, body: bytes) -> None:
    fuzzed.tried({"x-amz-target": f"AmazonSQS.{action}"}, "", body)
    fuzzed.tried({}, "Action=" + action, body)


_quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
_long = settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
_actions = st.sampled_from(sorted(ACTIONS))
_bodies = st.one_of(
    st.binary(max_size=200), st.text(alphabet='{}[]":,.&=%0aQueUrl\\u', max_size=80).map(str.encode)
)


@_quick
@given(made=_arguments())
@example(made=("SendMessage", {"QueueUrl": URL + "q", "MessageBody": "good"}))
@example(made=("SendMessage", {"QueueUrl": URL + "q", "MessageBody": "\ud800"}))
@example(made=("CreateQueue", {"QueueName": "\ud800"}))
def test_arguments_of_any_kind_are_answered_or_refused(
    fuzzed: Fuzzed, made: tuple[str, dict[str, Any]]
) -> None:
    _try_arguments(fuzzed, made)


@_quick
@given(action=_actions, body=_bodies)
def test_bodies_of_any_bytes_are_answered_or_refused(fuzzed: Fuzzed, action: str, body: bytes) -> None:
    _try_bytes(fuzzed, action, body)


@pytest.mark.soak
@_long
@given(made=_arguments())
def test_many_arguments_of_any_kind_are_answered_or_refused(
    fuzzed: Fuzzed, made: tuple[str, dict[str, Any]]
) -> None:
    _try_arguments(fuzzed, made)


@pytest.mark.soak
@_long
@given(action=_actions, body=_bodies)
def test_many_bodies_of_any_bytes_are_answered_or_refused(fuzzed: Fuzzed, action: str, body: bytes) -> None:
    _try_bytes(fuzzed, action, body)
