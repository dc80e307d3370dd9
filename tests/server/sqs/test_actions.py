"""Every action by AWS's own client, in the JSON protocol and in the older query protocol."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from botocore.exceptions import ClientError

from penstock.server.sqs import digests
from penstock.server.sqs.actions import ACTIONS
from tests.server.sqs.conftest import Named
from tests.server.sqs.query_model import installed
from tests.server.sqs.serving import Serving

#: What XML has to write otherwise, and what a parser might change.
ODD = "a\r\n\t <b>&amp; \"'é\U0001f600 ]]> "


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def arn_of(url: str) -> str:
    return "arn:aws:sqs:us-east-1:000000000000:" + name_of(url)


def test_every_action_of_the_service_is_there() -> None:
    assert set(ACTIONS) == set(installed()["operations"])


def test_a_queue_is_made_found_and_deleted(sqs: Any, queue: Named, server: Serving) -> None:
    url = queue()
    assert url == f"{server.url}/000000000000/{name_of(url)}"
    assert sqs.get_queue_url(QueueName=name_of(url))["QueueUrl"] == url
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as error:
        sqs.get_queue_url(QueueName=name_of(url))
    assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"


def test_queues_are_listed_by_prefix_and_in_pages(sqs: Any) -> None:
    prefix = f"listed-{sqs.meta.service_model.protocol}-"
    for letter in "abc":
        sqs.create_queue(QueueName=prefix + letter)
    first = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2)
    second = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2, NextToken=first["NextToken"])
    assert [name_of(url)[-1] for url in first["QueueUrls"] + second["QueueUrls"]] == ["a", "b", "c"]
    assert "NextToken" not in second
    assert sqs.list_queues(QueueNamePrefix="nothing-has-this").get("QueueUrls", []) == []


def test_attributes_are_set_and_got(sqs: Any, queue: Named) -> None:
    url = queue(VisibilityTimeout="60", DelaySeconds="5")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0", "MaximumMessageSize": "2048"})
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    wanted = {"VisibilityTimeout": "60", "DelaySeconds": "0", "MaximumMessageSize": "2048"}
    assert found.items() >= {**wanted, "MessageRetentionPeriod": "345600", "QueueArn": arn_of(url)}.items()
    some = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn", "DelaySeconds"])
    assert some["Attributes"] == {"QueueArn": arn_of(url), "DelaySeconds": "0"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)


def test_tags_are_put_listed_and_taken_away(sqs: Any, queue: Named) -> None:
    url = queue(tags={"team": "a + b", "stage": "test"})
    sqs.tag_queue(QueueUrl=url, Tags={"cost": "=1@é", "empty": ""})
    sqs.untag_queue(QueueUrl=url, TagKeys=["stage", "unknown"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a + b", "cost": "=1@é", "empty": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "cost", "empty"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)


def test_a_message_comes_as_it_was_sent_with_its_sums(sqs: Any, queue: Named) -> None:
    url = queue()
    attributes = {
        "text": {"DataType": "String", "StringValue": ODD},
        "n": {"DataType": "Number.int", "StringValue": "7"},
        "raw": {"DataType": "Binary.png", "BinaryValue": b"\0\xff\r\n"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody=ODD, MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    sums = digests.of_attributes(
        [("text", "String", ODD), ("n", "Number.int", "7"), ("raw", "Binary.png", b"\0\xff\r\n")]
    )
    assert sent["MD5OfMessageBody"] == hashlib.md5(ODD.encode()).hexdigest()
    assert sent["MD5OfMessageAttributes"] == sums
    trace_sum = digests.of_attributes([("AWSTraceHeader", "String", "Root=1-2-3")])
    assert sent["MD5OfMessageSystemAttributes"] == trace_sum
    [got] = sqs.receive_message(
        QueueUrl=url, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"]
    )["Messages"]
    assert (got["MessageId"], got["Body"], got["MD5OfBody"]) == (
        sent["MessageId"], ODD, sent["MD5OfMessageBody"],
    )  # fmt: skip
    assert got["MessageAttributes"] == attributes
    assert got["MD5OfMessageAttributes"] == sums
    system = got["Attributes"]
    assert (system["SenderId"], system["ApproximateReceiveCount"]) == ("anybody", "1")
    assert system["AWSTraceHeader"] == "Root=1-2-3"


def test_only_the_attributes_that_are_asked_for_are_told(sqs: Any, queue: Named) -> None:
    url = queue(VisibilityTimeout="0")
    value = {"DataType": "String", "StringValue": "x"}
    sqs.send_message(
        QueueUrl=url, MessageBody="b", MessageAttributes={"a.one": value, "a.two": value, "b": value}
    )

    def names(*asked: str) -> list[str]:
        [got] = sqs.receive_message(QueueUrl=url, MessageAttributeNames=asked, VisibilityTimeout=30)[
            "Messages"
        ]
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
        assert "Attributes" not in got
        return sorted(got.get("MessageAttributes", {}))

    assert names("a.*") == ["a.one", "a.two"]
    assert names("b", "absent") == ["b"]
    assert names() == []
    [got] = sqs.receive_message(QueueUrl=url, AttributeNames=["SenderId"])["Messages"]
    assert list(got["Attributes"]) == ["SenderId"]


def test_a_batch_is_sent_and_each_entry_has_its_own_answer(sqs: Any, queue: Named) -> None:
    url = queue()
    value = {"DataType": "String", "StringValue": "x"}
    answer = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "1", "MessageAttributes": {"k": value}},
            {"Id": "late", "MessageBody": "2", "DelaySeconds": 10},
            {"Id": "bad", "MessageBody": "3", "DelaySeconds": 901},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["good", "late"]
    assert answer["Successful"][0]["MD5OfMessageAttributes"] == digests.of_attributes([("k", "String", "x")])
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidParameterValue", True)
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == ["1"]


def test_messages_are_deleted_one_by_one_and_in_batches(sqs: Any, queue: Named) -> None:
    url = queue()
    entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(4)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 4
    handles = [
        message["ReceiptHandle"]
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    ]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handles[0])
    entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles[1:])]
    answer = sqs.delete_message_batch(
        QueueUrl=url, Entries=[*entries, {"Id": "bad", "ReceiptHandle": "never"}]
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "1", "2"]
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["Code"]) == ("bad", "ReceiptHandleIsInvalid")
    assert server_count(sqs, url) == 0


def server_count(sqs: Any, url: str) -> int:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return sum(int(value) for name, value in found.items() if name.startswith("ApproximateNumberOf"))


def test_a_lease_is_made_longer_and_ended(sqs: Any, queue: Named, server: Serving) -> None:
    url = queue(VisibilityTimeout="10")
    for body in ("1", "2", "3"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    one, two, three = (
        message["ReceiptHandle"]
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    )
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=one, VisibilityTimeout=60)
    answer = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "long", "ReceiptHandle": two, "VisibilityTimeout": 60},
            {"Id": "short", "ReceiptHandle": three, "VisibilityTimeout": 0},
            {"Id": "bad", "ReceiptHandle": three, "VisibilityTimeout": 43_201},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["long", "short"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [("bad", "InvalidParameterValue")]
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == 1
    server.clock.advance(20)  # The one that came again is visible again, and the long ones are not.
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == 1
    with pytest.raises(sqs.exceptions.MessageNotInflight):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=three, VisibilityTimeout=5)


def test_a_queue_is_emptied_of_what_waits_and_of_what_is_in_flight(sqs: Any, queue: Named) -> None:
    url = queue()
    for delay_s in (0, 0, 60):
        sqs.send_message(QueueUrl=url, MessageBody="b", DelaySeconds=delay_s)
    sqs.receive_message(QueueUrl=url)
    assert server_count(sqs, url) == 3
    sqs.purge_queue(QueueUrl=url)
    assert server_count(sqs, url) == 0


def test_sources_of_a_dead_letter_queue_are_listed_in_pages(sqs: Any, queue: Named) -> None:
    dead = queue()
    policy = f'{{"deadLetterTargetArn":"{arn_of(dead)}","maxReceiveCount":"3"}}'
    sources = [queue(RedrivePolicy=policy) for _ in range(3)]
    first = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2)
    rest = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2, NextToken=first["NextToken"])
    assert sorted(first["queueUrls"] + rest["queueUrls"]) == sorted(sources)
    assert sqs.list_dead_letter_source_queues(QueueUrl=sources[0]).get("queueUrls", []) == []


def test_a_fifo_queue_keeps_order_and_leaves_out_duplicates(sqs: Any, queue: Named) -> None:
    url = queue(fifo=True, ContentBasedDeduplication="true")
    first = sqs.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g")
    twice = sqs.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g")
    assert (first["MessageId"], first["SequenceNumber"]) == (twice["MessageId"], twice["SequenceNumber"])
    [second] = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": "a", "MessageBody": "2", "MessageGroupId": "g", "MessageDeduplicationId": "mine"}],
    )["Successful"]
    assert int(second["SequenceNumber"]) > int(first["SequenceNumber"])
    system: dict[str, str] = {}
    for body in ("1", "2"):
        [got] = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
        system = got["Attributes"]
        assert (got["Body"], system["MessageGroupId"]) == (body, "g")
        assert "Messages" not in sqs.receive_message(QueueUrl=url)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert system["MessageDeduplicationId"] == "mine"
    assert system["SequenceNumber"] == second["SequenceNumber"]


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([{"Id": str(n), "MessageBody": "b"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "b"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "ä", "MessageBody": "b"}], "InvalidBatchEntryId"),
        ([{"Id": str(n), "MessageBody": "b" * 600_000} for n in range(2)], "BatchRequestTooLong"),
    ],
)
def test_a_batch_that_is_none_is_refused_by_its_own_error(
    sqs: Any, queue: Named, entries: list[dict[str, str]], code: str
) -> None:
    url = queue()
    with pytest.raises(ClientError) as error:
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert code_of(error) == f"AWS.SimpleQueueService.{code}"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert server_count(sqs, url) == 0
