"""What a client sends in confidence is in no log, and in no answer to a request that was refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import penstock
from tests.server.clients.served import ACCESS_KEY, SECRET, TOKEN, signed_server
from tests.server.processes import TIMEOUT_S, Served

#: In every body, value of an attribute, and header that is sent here.
MARK = "confidential-7b1e"
TEXT = {"DataType": "String", "StringValue": MARK}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with penstock.open(folder / "penstock-data") as ps:
        ps.create_queue("q")
        ps.create_queue("f.fifo", fifo=True)
        # A script that fails: what it was given is no part of what is told of it.
        ps.create_queue("s", on_enqueue="function on_enqueue(message) return message.nothing.more end")
    with signed_server(folder) as started:
        yield started


def client(server: Served, secret: str = SECRET) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=False),
    )


def bad_messages() -> Iterator[dict[str, Any]]:
    good = {"QueueUrl": "http://here/000000000000/q", "MessageBody": MARK, "MessageAttributes": {"a": TEXT}}
    yield {**good, "DelaySeconds": 901}
    yield {**good, "MessageBody": MARK + "\0"}
    yield {**good, "MessageBody": MARK * 70_000}
    yield {**good, "MessageBody": {MARK: MARK}}
    yield {**good, "MessageBody": [MARK]}
    yield {**good, "MessageDeduplicationId": "d"}
    yield {**good, "QueueUrl": "http://here/000000000000/f.fifo"}
    yield {**good, "QueueUrl": "http://here/000000000000/s"}
    yield {**good, "QueueUrl": "http://here/000000000000/none"}
    yield {**good, "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "Number", "StringValue": MARK}}}
    yield {**good, "MessageSystemAttributes": {"AWSTraceHeader": {**TEXT, "StringValue": MARK + "\0"}}}
    for value in (
        {"DataType": "Number", "StringValue": MARK},
        {"DataType": "String", "StringValue": MARK + "\0"},
        {"DataType": "Binary", "StringValue": MARK},
        {"DataType": "String", "BinaryValue": MARK},
        {"DataType": "String", "StringValue": [MARK]},
    ):
        yield {**good, "MessageAttributes": {"a": value}}
    for name in ("Penstock.Weight", "Penstock.Priority"):
        yield {**good, "MessageAttributes": {name: TEXT}}
    yield {**good, "MessageAttributes": {"Penstock.ThrottleKeys": {**TEXT, "StringValue": MARK * 200}}}


def posted(server: Served, headers: dict[str, str], body: bytes, path: str = "", verb: str = "POST") -> str:
    try:
        with urlopen(Request(server.url + path, body, headers, method=verb), timeout=TIMEOUT_S) as answer:
            return f"{answer.headers}{answer.read().decode(errors='replace')}"
    except HTTPError as error:
        with error:
            return f"{error.headers}{error.read().decode(errors='replace')}"


def test_nothing_that_is_sent_in_confidence_is_told_again(server: Served, folder: Path) -> None:
    sqs, told = client(server), []
    for arguments in bad_messages():
        with pytest.raises(ClientError) as refused:
            sqs.send_message(**arguments)
        told.append(json.dumps(refused.value.response))
        entry = {name: value for name, value in arguments.items() if name != "QueueUrl"}
        try:
            batch = [{"Id": "a", **entry}]
            answer = sqs.send_message_batch(QueueUrl=arguments["QueueUrl"], Entries=batch)
        except ClientError as error:
            answer = error.response
        told.append(json.dumps(answer))
    at = "http://here/000000000000/q"
    sqs.send_message(QueueUrl=at, MessageBody=MARK, MessageAttributes={"a": TEXT})
    [got] = sqs.receive_message(QueueUrl=at, MessageAttributeNames=["All"])["Messages"]
    assert (got["Body"], got["MessageAttributes"]["a"]) == (MARK, TEXT)
    with pytest.raises(ClientError) as refused:
        client(server, secret=MARK + "-a-secret").list_queues()
    told.append(json.dumps(refused.value.response))
    target = {"X-Amz-Target": "AmazonSQS.SendMessage"}
    for headers, body in (
        ({**target, "Authorization": f"AWS4-HMAC-SHA256 Credential={MARK}"}, f'{{"MessageBody": "{MARK}'),
        ({**target, "Authorization": f"Bearer {MARK}", "X-Amz-Date": MARK}, "{}"),
        ({"X-Amz-Target": MARK, "X-Own": MARK, "Cookie": MARK}, MARK),
        ({"Authorization": MARK}, f"Action=SendMessage&MessageBody={MARK}"),
        ({}, f"Action={MARK}&X-Amz-Signature={MARK}&X-Amz-Algorithm={MARK}"),
    ):
        told.append(posted(server, headers, body.encode()))
    assert server.stop() == 0
    logged = (folder / "requests.log").read_text()
    assert logged.count("\n") == len(told) + 2
    for text in (*told, logged, server.errors):
        assert MARK not in text
        assert SECRET not in text


def bad_requests() -> Iterator[tuple[str, str, dict[str, str], bytes]]:
    """Path, method, headers besides the key, and body."""
    messages, call = "/v1/queues/q/messages", "/v1/call/enqueue"
    message: dict[str, Any] = {"payload_text": MARK, "headers": {"a": MARK}}
    for more in (
        {"payload_text": [MARK]},
        {"payload_json": MARK},
        {"payload": f"{MARK}!"},
        {"priority": MARK},
        {"delay_s": -1},
        {"headers": {"a": {MARK: MARK}}},
        {"headers": {"a": MARK * 10_000}},
        {"headers": {"penstock-own": MARK}},
        {"headers": {"a": f"{MARK}\0"}},
        {"id": "none"},
        {"unknown": MARK},
    ):
        yield messages, "POST", {}, json.dumps({"messages": [{**message, **more}]}).encode()
    yield "/v1/queues/s/messages", "POST", {}, json.dumps({"messages": [message]}).encode()
    yield "/v1/queues/none/messages", "POST", {}, json.dumps({"messages": [message]}).encode()
    yield messages, "POST", {}, f'{{"messages": [{{"payload_text": "{MARK}'.encode()
    yield messages, "DELETE", {}, MARK.encode()
    yield "/v1/state/k", "PUT", {}, json.dumps({"value": MARK}).encode()
    for name in ("Content-Type", "Accept", "Idempotency-Key", "Penstock-Call", "Cookie"):
        for path in (messages, call):
            yield (
                path,
                "POST",
                {name: f"{MARK} {MARK}"},
                json.dumps({"messages": [{**message, "x": 1}]}).encode(),
            )
    for scheme in ("Bearer", "Basic", "AWS4-HMAC-SHA256", MARK):
        yield messages, "POST", {"Authorization": f"{scheme} {MARK}"}, b"{}"
    arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
    yield messages, "POST", arrow, MARK.encode() * 100
    msgpack = {"Content-Type": "application/msgpack"}
    yield messages, "POST", msgpack, b"\x81\xa8messages\xb0" + MARK.encode()
    yield call, "POST", msgpack, b"\x92\x92\xa1q\x91\xb0" + MARK.encode()
    yield call, "POST", msgpack, b"\x92\x92\xa1q\xb0" + MARK.encode() + b"\x80"


def test_neither_is_it_by_rest_and_in_native_calls(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "penstock-data") as ps:
        ps.create_queue("q")
        ps.create_queue("s", on_enqueue="function on_enqueue(message) return message.nothing.more end")
    with signed_server(tmp_path) as server:
        told = []
        for path, verb, headers, body in bad_requests():
            known = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            told.append(posted(server, {**known, **headers}, body, path, verb))
        assert server.stop() == 0
        logged = (tmp_path / "requests.log").read_text()
        assert logged.count("\n") == len(told)
        for text in (*told, logged, server.errors):
            assert MARK not in text
            assert TOKEN not in text
