"""What Penstock has more than SQS: weights, priorities, throttles, turns, bodies that are no text."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.sqs.conftest import Named
from tests.server.sqs.serving import Serving
from tests.server.sqs.test_actions import code_of, name_of
from tests.server.sqs.test_attributes import received


def test_weight_priority_and_throttle_keys_travel_as_attributes_of_a_message(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url = queue()
    given = {"Penstock.Weight": "3", "Penstock.Priority": "9", "Penstock.ThrottleKeys": "api, mail"}
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in given.items()}
    sqs.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=attributes, MessageGroupId="customer-7")
    [message] = server.ps.queue(name_of(url)).peek()
    assert (message.weight, message.priority, message.throttle_keys) == (3, 9, ("api", "mail"))
    assert message.fairness_key == "customer-7"
    [got] = received(sqs, url)
    assert got["MessageAttributes"] == attributes
    assert got["Attributes"]["MessageGroupId"] == "customer-7"


@pytest.mark.parametrize(
    ("name", "value"),
    [("Penstock.Weight", "0"), ("Penstock.Weight", "heavy"), ("Penstock.Priority", "10")],
)
def test_a_weight_or_a_priority_that_cannot_be_is_refused(
    sqs: Any, queue: Named, name: str, value: str
) -> None:
    url = queue()
    with pytest.raises(ClientError) as error:
        sqs.send_message(
            QueueUrl=url,
            MessageBody="b",
            MessageAttributes={name: {"DataType": "String", "StringValue": value}},
        )
    assert code_of(error) == "InvalidParameterValue"
    assert received(sqs, url) == []


def test_urgent_messages_come_first_and_groups_of_a_standard_queue_take_turns(sqs: Any, queue: Named) -> None:
    url = queue()
    for group in ("busy", "busy", "busy", "busy", "calm"):
        sqs.send_message(QueueUrl=url, MessageBody=group, MessageGroupId=group)
    urgent = {"Penstock.Priority": {"DataType": "Number", "StringValue": "9"}}
    sqs.send_message(QueueUrl=url, MessageBody="urgent", MessageGroupId="busy", MessageAttributes=urgent)
    bodies = [one["Body"] for one in received(sqs, url, MaxNumberOfMessages=3)]
    assert bodies[0] == "urgent"
    assert "calm" in bodies


def test_a_message_with_a_throttle_key_waits_for_its_turn_and_no_other_does(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url = queue()
    key = f"limited-{name_of(url)}"
    server.ps.throttles.set(key, rate_per_s=1, burst=1)
    limited = {"Penstock.ThrottleKeys": {"DataType": "String", "StringValue": key}}
    for body in ("1", "2"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=limited)
    sqs.send_message(QueueUrl=url, MessageBody="free")
    assert sorted(one["Body"] for one in received(sqs, url, MaxNumberOfMessages=10)) == ["1", "free"]
    server.clock.advance(1)
    assert [one["Body"] for one in received(sqs, url, MaxNumberOfMessages=10)] == ["2"]


def test_a_payload_that_is_no_text_is_received_in_base64_and_says_so(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url = queue()
    server.ps.queue(name_of(url)).enqueue(b"\xff\0")
    [got] = received(sqs, url)
    assert base64.b64decode(got["Body"]) == b"\xff\0"
    assert got["MessageAttributes"] == {"Penstock.Encoding": {"DataType": "String", "StringValue": "base64"}}
