"""Bodies that are made to break a server: refused in its own form, at once, with nothing changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.endpoint import Request
from penstock.server.sqs import query_codec
from penstock.server.sqs.endpoint import MAX_BODY_BYTES
from penstock.server.sqs.errors import SqsError
from tests.server.sqs.serving import Serving, serving
from tests.server.sqs.test_as_documented import posted

#: None of these may hold up others for longer; on an idle machine all take a small part of it.
AT_ONCE_S = 3.0
URL = "http://here/000000000000/q"
_IN_JSON = '{"QueueUrl": "' + URL + '", "MessageBody": %s}'
_IN_FORM = f"Action=SendMessage&QueueUrl={URL}&"
DEEP = 200_000


def in_json(message: str, encoding: str = "utf-8") -> bytes:
    return (_IN_JSON % message).encode(encoding, "surrogatepass")


def nested(opening: str, closing: str, inside: str = "1") -> str:
    return opening * DEEP + inside + closing * DEEP


JSON: dict[str, bytes] = {
    "lists in lists": b"[" * DEEP,
    "lists in an argument": in_json(nested("[", "]")),
    "lists in what nobody asked for": in_json('"b", "More": ' + nested("[", "]")),
    "objects in what nobody asked for": in_json('"b", "More": ' + nested('{"a":', "}")),
    "a number of 5,000 digits": in_json('"b", "DelaySeconds": ' + "1" * 5000),
    "a number beyond all others": in_json('"b", "DelaySeconds": 1e999999999'),
    "a fraction": in_json('"b", "DelaySeconds": 1.5'),
    "a number as text": in_json('"b", "DelaySeconds": "1"'),
    "a truth for a number": in_json('"b", "DelaySeconds": true'),
    "no number": in_json('"b", "DelaySeconds": NaN'),
    "twice, the last one empty": in_json('"b", "MessageBody": ""'),
    "a number for a text": in_json("1"),
    "an object for a text": in_json("{}"),
    "bytes that are no text": in_json('"b"').replace(b'"b"', b'"\xff\xfe"'),
    "half of a character": in_json('"\\ud800"'),
    "another encoding": in_json('"b"', "utf-16"),
    "a mark at its beginning": b"\xef\xbb\xbf" + in_json('"b"'),
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "two objects": in_json('"b"') * 2,
    "attributes without end": in_json('"b", "MessageAttributes": %s')
    % json.dumps({f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(20_000)}).encode(),
    "an attribute of another type": in_json('"b", "MessageAttributes": {"a": {"DataType": 1}}'),
    "a value that is no base64": in_json(
        '"b", "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "?"}}'
    ),
}
FORMS: dict[str, bytes] = {
    "fields without end": _IN_FORM.encode() + b"&".join(b"a%d=1" % n for n in range(100_000)),
    "a name without end": _IN_FORM.encode() + b".".join([b"a"] * DEEP) + b"=1",
    "a percent sign that quotes nothing": f"{_IN_FORM}MessageBody=100%".encode(),
    "bytes that are no text": f"{_IN_FORM}MessageBody=%ff%fe".encode(),
    "half of a character": f"{_IN_FORM}MessageBody=%ed%a0%80".encode(),
    "a null": f"{_IN_FORM}MessageBody=%00".encode(),
    "twice, the last one empty": f"{_IN_FORM}MessageBody=b&MessageBody=".encode(),
    "a value and parts": f"{_IN_FORM}MessageBody=b&MessageBody.1=c".encode(),
    "a number of 5,000 digits": f"{_IN_FORM}MessageBody=b&DelaySeconds={'1' * 5000}".encode(),
    "no number": f"{_IN_FORM}MessageBody=b&DelaySeconds=inf".encode(),
    "an item of a high number": f"{_IN_FORM}MessageBody=b&MessageAttribute.{'9' * 50}.Name=a".encode(),
    "an item of an odd number": f"{_IN_FORM}MessageBody=b&MessageAttribute.1_000.Name=a".encode(),
    "an attribute without a value": f"{_IN_FORM}MessageBody=b&MessageAttribute.1.Name=a".encode(),
    "entities in entities": b'<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a>&c;</a>',
    "nothing": b"",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as started:
        started.ps.create_queue("q")
        yield started


def target(headers: dict[str, str]) -> dict[str, str]:
    return {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0", **headers}


def refused(server: Serving, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    before = server.ps.queue("q").stats().last_seq, server.ps.queues()
    began_s = time.monotonic()
    status, _, answer = posted(server, headers, body)
    assert time.monotonic() - began_s < AT_ONCE_S
    assert (server.ps.queue("q").stats().last_seq, server.ps.queues()) == before
    assert posted(server, target({}), in_json('"good"'))[0] == 200
    return status, answer


@pytest.mark.parametrize("what", JSON)
def test_json_that_is_made_to_break_it_is_refused(server: Serving, what: str) -> None:
    status, answer = refused(server, target({}), JSON[what])
    assert status == 400
    assert set(json.loads(answer)) == {"__type", "message"}


@pytest.mark.parametrize("what", FORMS)
def test_a_form_that_is_made_to_break_it_is_refused(server: Serving, what: str) -> None:
    status, answer = refused(server, {}, FORMS[what])
    assert status == 400
    assert b"<ErrorResponse" in answer


def test_what_is_packed_is_not_unpacked(server: Serving) -> None:
    status, _ = refused(server, target({"Content-Encoding": "gzip"}), b"\x1f\x8b\x08" + b"\0" * 1000)
    assert status == 400


@pytest.mark.parametrize("headers", [target({}), {}], ids=["json", "form"])
def test_a_request_that_no_batch_can_be_is_refused_unread(server: Serving, headers: dict[str, str]) -> None:
    status, answer = refused(server, headers, b"%41" * (MAX_BODY_BYTES // 3 + 1))
    assert status == 413
    assert b"RequestEntityTooLarge" in answer


def test_the_largest_batch_fits_however_its_characters_are_written(server: Serving) -> None:
    body = "é" * 2**19
    quoted = "%C3%A9" * 2**19
    assert posted(server, target({}), in_json(json.dumps(body)))[0] == 200
    assert posted(server, {}, f"{_IN_FORM}MessageBody={quoted}".encode())[0] == 200
    got: Any = server.ps.queue("q").list("ready", limit=10_000).items
    assert [one.payload.decode() == body for one in got[-2:]] == [True, True]


def test_signs_without_end_hold_up_others_no_longer_than_their_number_asks_for() -> None:
    text = "a=" + "%41" * 1_000_000
    request = Request("r-1", "POST", "/", "", {}, text.encode(), "here", None, lambda: True)

    def took_s(call: Callable[[], object]) -> float:
        began_s = time.perf_counter()
        call()
        return time.perf_counter() - began_s

    ours_s = min(took_s(lambda: query_codec.form(request)) for _ in range(3))
    assert ours_s < took_s(lambda: parse_qsl(text)) / 2  # Which goes from sign to sign in Python.


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["%41", "%0a", "%3D", "%C3%A9", "%C3", "\n", "\r", "=", "==", "+", ".", "é", "_", " "]
        )
    )
)
def test_what_is_quoted_is_read_as_forms_have_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    request = Request("r-1", "POST", "/", "", {}, b"a=" + text.encode(), "here", None, lambda: True)
    try:
        assert query_codec.form(request) == {"a": unquote_plus(text, errors="strict")}
    except SqsError as error:
        assert error.code == "MalformedInput"  # noqa: PT017  (a character cut in two)
        with pytest.raises(UnicodeDecodeError):
            unquote_plus(text, errors="strict")
