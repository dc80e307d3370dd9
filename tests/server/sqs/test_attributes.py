"""What attributes of queues and messages do, in both protocols, by a clock that the test moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from penstock.server_config import ServerSettings, SqsSettings
from tests.server.sqs.conftest import Named
from tests.server.sqs.serving import Serving, client, serving
from tests.server.sqs.test_actions import arn_of, code_of, name_of, server_count
from tests.server.sqs.test_moves_and_policies import dead_letters, redrive


def received(sqs: Any, url: str, **arguments: Any) -> list[dict[str, Any]]:
    found = sqs.receive_message(
        QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"], **arguments
    )
    return list(found.get("Messages", []))


def test_the_time_of_the_first_receive_stays(sqs: Any, queue: Named, server: Serving) -> None:
    url = queue(VisibilityTimeout="10")
    sqs.send_message(QueueUrl=url, MessageBody="b")
    first_ms = server.clock.now_ns() // 1_000_000
    for count in ("1", "2", "3"):
        [got] = received(sqs, url)
        system = got["Attributes"]
        assert system["ApproximateReceiveCount"] == count
        assert system["ApproximateFirstReceiveTimestamp"] == str(first_ms)
        server.clock.advance(11)


def test_a_dead_letter_says_where_it_died_and_can_be_sent_on(sqs: Any, queue: Named) -> None:
    source, dead = dead_letters(sqs, queue, 1)
    [got] = received(sqs, dead)
    assert got["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(source)
    assert "MessageAttributes" not in got
    sqs.send_message(QueueUrl=source, MessageBody="b")
    assert "DeadLetterQueueSourceArn" not in received(sqs, source)[0]["Attributes"]


def test_an_attempt_that_comes_again_gets_the_same_messages(sqs: Any, queue: Named, server: Serving) -> None:
    url = queue(fifo=True, ContentBasedDeduplication="true", VisibilityTimeout="30")
    for group in "ab":
        sqs.send_message(QueueUrl=url, MessageBody=group, MessageGroupId=group)

    def attempt(name: str) -> list[tuple[str, str]]:
        found = received(sqs, url, ReceiveRequestAttemptId=name)
        return [(got["Body"], got["ReceiptHandle"]) for got in found]

    first = attempt("one")
    server.clock.advance(20)
    assert attempt("one") == first
    server.clock.advance(20)  # From the repetition on, not from the first.
    other = attempt("two")
    assert [body for body, _ in first + other] == ["a", "b"]
    assert attempt("one") == first
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first[0][1])
    assert attempt("one") == []  # What it had is gone, and the other is in flight.
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=other[0][1], VisibilityTimeout=600)
    server.clock.advance(301)
    assert attempt("two") == []


def test_an_attempt_is_a_matter_of_fifo_queues(sqs: Any, queue: Named) -> None:
    with pytest.raises(ClientError) as error:
        received(sqs, queue(), ReceiveRequestAttemptId="one")
    assert code_of(error).startswith("InvalidParameterValue")


def test_duplicates_are_of_the_queue_or_of_their_group(sqs: Any, queue: Named) -> None:
    url = queue(fifo=True)

    def ids() -> list[str]:
        return [
            sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId=group, MessageDeduplicationId="d")[
                "MessageId"
            ]
            for group in ("g", "h", "g")
        ]

    assert len(set(ids())) == 1
    high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    url = queue(fifo=True, **high)
    g, h, again = ids()
    assert g == again != h
    got = received(sqs, url, MaxNumberOfMessages=2)
    assert [one["Attributes"]["MessageDeduplicationId"] for one in got] == ["d", "d"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found.items() >= high.items()
    for refused in ({"FifoThroughputLimit": "perMessageGroupId"}, {"DeduplicationScope": "message"}):
        with pytest.raises(sqs.exceptions.InvalidAttributeValue):
            queue(fifo=True, **refused)
    with pytest.raises(sqs.exceptions.InvalidAttributeValue):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"DeduplicationScope": "queue"})


def test_a_queue_says_whose_dead_letters_it_takes(sqs: Any, queue: Named) -> None:
    source, dead = queue(), queue()

    def allow(**policy: Any) -> None:
        sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(policy)})

    def name() -> None:
        sqs.set_queue_attributes(QueueUrl=source, Attributes={"RedrivePolicy": redrive(dead)})

    for policy in (
        {"redrivePermission": "denyAll"},
        {"redrivePermission": "byQueue", "sourceQueueArns": [arn_of("another")]},
    ):
        allow(**policy)
        with pytest.raises(ClientError) as error:
            name()
        assert code_of(error).startswith("InvalidParameterValue")
    allow(redrivePermission="byQueue", sourceQueueArns=[arn_of(source)])
    name()
    found = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["RedriveAllowPolicy"])["Attributes"]
    assert json.loads(found["RedriveAllowPolicy"])["sourceQueueArns"] == [arn_of(source)]
    for refused in (
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "denyAll", "sourceQueueArns": [arn_of(source)]},
        {"redrivePermission": "byQueue", "sourceQueueArns": [arn_of(source)] * 11},
        {"redrivePermission": "some"},
    ):
        with pytest.raises(sqs.exceptions.InvalidAttributeValue):
            allow(**refused)


def test_a_queue_is_purged_once_a_minute(sqs: Any, queue: Named, server: Serving) -> None:
    url = queue()
    sqs.purge_queue(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="b")
    with pytest.raises(sqs.exceptions.PurgeQueueInProgress):
        sqs.purge_queue(QueueUrl=url)
    assert server_count(sqs, url) == 1
    server.clock.advance(60)
    sqs.purge_queue(QueueUrl=url)
    sqs.delete_queue(QueueUrl=url)
    sqs.create_queue(QueueName=name_of(url))
    sqs.purge_queue(QueueUrl=url)


def test_a_message_is_kept_as_long_as_its_queue_says(sqs: Any, queue: Named, server: Serving) -> None:
    url = queue(MessageRetentionPeriod="60")
    sqs.send_message(QueueUrl=url, MessageBody="b")
    server.clock.advance(59)
    assert len(received(sqs, url, VisibilityTimeout=0)) == 1
    server.clock.advance(2)
    assert received(sqs, url) == []


def test_a_message_is_held_for_twelve_hours_at_most(sqs: Any, queue: Named, server: Serving) -> None:
    url = queue()
    sqs.send_message(QueueUrl=url, MessageBody="b")
    [got] = received(sqs, url, VisibilityTimeout=43_200)
    server.clock.advance(100)

    def hold(length_s: int) -> None:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=length_s
        )

    with pytest.raises(ClientError) as error:
        hold(43_200 - 99)
    assert code_of(error).startswith("InvalidParameterValue")
    hold(43_200 - 100)


def test_what_a_script_does_not_let_in_is_refused_and_no_failure(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url = queue()
    script = 'function on_enqueue(message) error("not today") end'
    server.ps.update_queue(name_of(url), on_enqueue=script)
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="b")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    [failed] = sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "b"}])["Failed"]
    assert failed["SenderFault"] is True


def test_region_and_account_are_settings() -> None:
    place = SqsSettings(region="eu-central-1", account="123456789012")
    with serving(settings=ServerSettings(sqs=place)) as server:
        sqs = client(server.url)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        assert url == f"{server.url}/123456789012/q"
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
        assert found["QueueArn"] == "arn:aws:sqs:eu-central-1:123456789012:q"
        assert sqs.get_queue_url(QueueName="q", QueueOwnerAWSAccountId="123456789012")["QueueUrl"] == url
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            sqs.get_queue_url(QueueName="q", QueueOwnerAWSAccountId="000000000000")
