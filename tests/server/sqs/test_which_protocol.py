"""Which requests are SQS's, in which of its two protocols, and that refusals answer in the same one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest

from penstock import Penstock
from penstock.server.calls import StoreCalls
from penstock.server.credentials import NoCredentials
from penstock.server.endpoint import Request, Response
from penstock.server.sqs.endpoint import SqsEndpoint
from penstock.server_config import Limits, ServerSettings

JSON = {"x-amz-target": "AmazonSQS.ListQueues"}
SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def endpoint(ps: Penstock, calls: StoreCalls) -> SqsEndpoint:
    return SqsEndpoint(ps, calls, NoCredentials(), ServerSettings())


def asked(ps: Penstock, method: str, path: str, query: str, headers: Mapping[str, str]) -> Response:
    calls = StoreCalls(ps, Limits())
    request = Request("r-1", method, path, query, headers, b"", "127.0.0.1", None, lambda: True)
    try:
        return asyncio.run(endpoint(ps, calls).answer(request))
    finally:
        calls.close()


def text_of(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


@pytest.mark.parametrize(
    ("method", "path", "headers", "claimed"),
    [
        ("GET", "/", {}, True),
        ("POST", "/", {}, True),
        ("GET", "/000000000000/q", {}, True),
        ("POST", "/elsewhere", JSON, True),
        ("POST", "/elsewhere", {"x-amz-target": "DynamoDB_20120810.ListTables"}, False),
        ("GET", "/elsewhere", JSON, False),
        ("PUT", "/", JSON, False),
    ],
)
def test_requests_of_either_protocol_are_claimed_and_no_others(
    ps: Penstock, method: str, path: str, headers: dict[str, str], claimed: bool
) -> None:
    calls = StoreCalls(ps, Limits())
    try:
        assert endpoint(ps, calls).claims(method, path, headers) is claimed
    finally:
        calls.close()


def test_an_action_in_the_query_of_the_root_is_answered_in_xml(ps: Penstock) -> None:
    response = asked(ps, "GET", "/", "Action=ListQueues&Version=2012-11-05", {"host": "localhost:9324"})
    found = ElementTree.fromstring(text_of(response))
    assert (response.status, found.tag) == (200, f"{SPACE}ListQueuesResponse")
    assert (
        found.findtext(f"{SPACE}ListQueuesResult/{SPACE}QueueUrl") == "http://localhost:9324/000000000000/q"
    )


@pytest.mark.parametrize(
    ("query", "code"), [("", "MissingAction"), ("Action=", "MissingAction"), ("Action=Fly", "InvalidAction")]
)
def test_a_form_that_names_no_action_is_told_what_is_missing(ps: Penstock, query: str, code: str) -> None:
    response = asked(ps, "GET", "/", query, {})
    found = ElementTree.fromstring(text_of(response))
    assert (response.status, found.findtext(f"{SPACE}Error/{SPACE}Code")) == (400, code)


@pytest.mark.parametrize(
    ("said", "scheme"),
    [("https", "https"), ("HTTPS, http", "https"), ("http", "http"), ("javascript", "http"), ("", "http")],
)
def test_the_url_of_a_queue_leads_back_through_the_proxy_that_ends_tls(
    ps: Penstock, said: str, scheme: str
) -> None:
    headers = {"host": "queues.example"} | ({"x-forwarded-proto": said} if said else {})
    answer = asked(ps, "POST", "/", "Action=GetQueueUrl&QueueName=q", headers)
    assert f">{scheme}://queues.example/000000000000/q<".encode() in text_of(answer)


def test_a_target_of_another_service_is_no_action_of_this_one(ps: Penstock) -> None:
    for target in ("ListQueues", "AmazonSNS.ListQueues", "xAmazonSQS.ListQueues"):
        response = asked(ps, "POST", "/", "", {"x-amz-target": target})
        kind = json.loads(text_of(response))["__type"]
        assert (response.status, kind) == (400, "com.amazon.coral.service#UnknownOperationException")


def test_a_refusal_is_in_the_protocol_of_the_request(ps: Penstock) -> None:
    calls = StoreCalls(ps, Limits())
    try:
        in_json = endpoint(ps, calls).refused(503, "stopping", "r-1", JSON)
        in_xml = endpoint(ps, calls).refused(503, "stopping", "r-1", {})
    finally:
        calls.close()
    assert json.loads(text_of(in_json))["message"] == "stopping"
    found = ElementTree.fromstring(text_of(in_xml))
    assert found.findtext(f"{SPACE}Error/{SPACE}Code") == "ServiceUnavailable"
    assert (in_json.status, in_xml.status) == (503, 503)
