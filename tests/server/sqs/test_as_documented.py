"""Limits, defaults and rules as AWS's pages have them, by its own client in both protocols."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError

from penstock.server.sqs import digests
from penstock.server.sqs.attributes import READABLE
from tests.server.sqs.conftest import Named
from tests.server.sqs.query_model import installed
from tests.server.sqs.serving import TIMEOUT_S, Serving
from tests.server.sqs.test_actions import arn_of, code_of, server_count
from tests.server.sqs.test_attributes import received
from tests.server.sqs.test_moves_and_policies import dead_letters

MIB = 2**20


def text(value: str, kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


def shown(sqs: Any, url: str, name: str = "All") -> dict[str, str]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name]).get("Attributes", {})
    return dict(found)


def refused(call: Any, code: str, **arguments: Any) -> None:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    assert code_of(error) in (code, f"AWS.SimpleQueueService.{code}"), arguments
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


# -- queues


def test_every_attribute_of_the_service_can_be_asked_for_and_no_other(sqs: Any, queue: Named) -> None:
    names = installed()["shapes"]["QueueAttributeName"]["enum"]
    assert set(names) == READABLE
    url = queue()
    for name in names:
        shown(sqs, url, name)
    refused(sqs.get_queue_attributes, "InvalidAttributeName", QueueUrl=url, AttributeNames=["Colour"])


def test_how_long_a_key_of_aws_is_good_for_is_kept_and_shown(sqs: Any, queue: Named) -> None:
    name = "KmsDataKeyReusePeriodSeconds"
    url = queue(**{name: "300"})
    assert shown(sqs, url)[name] == "300"
    assert name not in shown(sqs, queue())
    for value in ("59", "86401", "soon"):
        refused(sqs.set_queue_attributes, "InvalidAttributeValue", QueueUrl=url, Attributes={name: value})


def test_a_redrive_policy_that_says_no_count_has_ten(sqs: Any, queue: Named) -> None:
    dead = queue()
    url = queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn_of(dead)}))
    assert json.loads(shown(sqs, url)["RedrivePolicy"])["maxReceiveCount"] == 10


@pytest.mark.parametrize("name", ["plain", "plain.fifo"])
def test_the_name_of_a_fifo_queue_and_its_attribute_go_together(sqs: Any, name: str) -> None:
    given = {} if name.endswith(".fifo") else {"FifoQueue": "true"}
    refused(sqs.create_queue, "InvalidParameterValue", QueueName=name, Attributes=given)


def test_a_token_that_was_not_answered_is_no_place_to_go_on(sqs: Any, queue: Named) -> None:
    url = queue()
    for token in ("***", "YQ", "/w==", "_w=="):
        for action, more in ((sqs.list_queues, {}), (sqs.list_dead_letter_source_queues, {"QueueUrl": url})):
            refused(action, "InvalidParameterValue", MaxResults=1, NextToken=token, **more)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("VisibilityTimeout", 0, 43_200),
        ("DelaySeconds", 0, 900),
        ("MaximumMessageSize", 1024, MIB),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
    ],
)
def test_a_number_is_accepted_within_its_limits(
    sqs: Any, queue: Named, name: str, low: int, high: int
) -> None:
    for value in (low, high):
        assert shown(sqs, queue(**{name: str(value)}))[name] == str(value)
    url = queue()
    for text_of in (low - 1, high + 1, "", "1.0", "٣٠"):
        given = {name: str(text_of)}
        refused(sqs.set_queue_attributes, "InvalidAttributeValue", QueueUrl=url, Attributes=given)


def test_a_queue_of_another_account_is_not_there(sqs: Any, queue: Named) -> None:
    url = queue()
    other = url.replace("000000000000", "123456789012")
    refused(sqs.send_message, "NonExistentQueue", QueueUrl=other, MessageBody="b")
    refused(sqs.delete_queue, "NonExistentQueue", QueueUrl=other)
    assert server_count(sqs, url) == 0


def test_a_queue_is_known_by_its_url_whatever_the_host(sqs: Any, queue: Named) -> None:
    url = queue()
    path = url[url.index("/", len("http://")) :]
    for same in (f"https://sqs.us-east-1.amazonaws.com{path}", f"http://localhost:1{path}/", path):
        found = sqs.get_queue_attributes(QueueUrl=same, AttributeNames=["QueueArn"])["Attributes"]
        assert found == {"QueueArn": arn_of(url)}, same
    for none in (
        "nothing",
        "http://localhost/",
        "http://[",
        "http://localhost/000000000000/",
        "http://a/1/q",
    ):
        refused(sqs.get_queue_attributes, "InvalidAddress", QueueUrl=none, AttributeNames=["QueueArn"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("aws:team", "a"), ("AWS:team", "a"), ("team", "aws:a"), ("<", "a"), ("a", "&"), ("", "a")],
)
def test_a_tag_that_aws_does_not_take_is_refused(sqs: Any, queue: Named, key: str, value: str) -> None:
    url = queue()
    refused(sqs.tag_queue, "InvalidParameterValue", QueueUrl=url, Tags={"good": "1", key: value})
    assert sqs.list_queue_tags(QueueUrl=url).get("Tags", {}) == {}
    longest = {"k" * 128: "v" * 256, "größe _.:/=+-@": "漢 "}
    sqs.tag_queue(QueueUrl=url, Tags=longest)
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == longest
    for long in ({"k" * 129: ""}, {"k": "v" * 257}, {f"k{n}": "" for n in range(49)}):
        refused(sqs.tag_queue, "InvalidParameterValue", QueueUrl=url, Tags=long)


# -- messages


def test_an_attribute_may_have_any_name_and_label_that_aws_takes(sqs: Any, queue: Named) -> None:
    url = queue()
    sent = {
        "sqs": text("x", "String.sqs"),
        "a.b-c_D9": text("-12.5e3", "Number." + "n" * 249),
        "n" * 256: text("x", "String. label\twith <signs>"),
    }
    answer = sqs.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=sent)
    [got] = received(sqs, url)
    assert got["MessageAttributes"] == sent
    sums = digests.of_attributes([(n, one["DataType"], one["StringValue"]) for n, one in sent.items()])
    assert got["MD5OfMessageAttributes"] == answer["MD5OfMessageAttributes"] == sums


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, text("x")) for name in ("AWS.a", "aWs.a", "Amazon.a", ".a", "a.", "a..b", "a b", "n" * 257)),
        *(("a", text("x", kind)) for kind in ("string", "Text", "String.", "String." + "x" * 250, "Stringy")),
        ("a", text("x", "String.\ufffe")),
        *(("a", text(number, "Number")) for number in ("x", "1 ", "1e", "0x1", "--1", "NaN")),
        ("a", {"DataType": "Binary", "StringValue": "x"}),
        ("a", {"DataType": "String", "BinaryValue": b"x"}),
        ("a", {"DataType": "String"}),
        ("a", text("\x01")),
    ],
)
def test_an_attribute_that_aws_does_not_take_is_refused(
    sqs: Any, queue: Named, name: str, value: dict[str, Any]
) -> None:
    url = queue()
    arguments = {"QueueUrl": url, "MessageBody": "b", "MessageAttributes": {name: value}}
    refused(sqs.send_message, "InvalidParameterValue", **arguments)
    assert server_count(sqs, url) == 0


def test_a_message_has_up_to_ten_attributes(sqs: Any, queue: Named) -> None:
    url = queue()
    sent = {f"a{n}": text("x") for n in range(11)}
    arguments = {"QueueUrl": url, "MessageBody": "b", "MessageAttributes": sent}
    refused(sqs.send_message, "InvalidParameterValue", **arguments)
    del sent["a0"]
    sqs.send_message(**arguments)


def test_a_message_is_as_large_as_its_body_and_all_parts_of_its_attributes(sqs: Any, queue: Named) -> None:
    for url, most in ((queue(), MIB), (queue(MaximumMessageSize="1024"), 1024)):
        sent = {"name": text("é", "String.of"), "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"}}
        rest = most - len(b"nameString.of\xc3\xa9" + b"rawBinary\0\xff")
        sqs.send_message(QueueUrl=url, MessageBody="b" * rest, MessageAttributes=sent)
        arguments = {"QueueUrl": url, "MessageBody": "b" * (rest + 1), "MessageAttributes": sent}
        refused(sqs.send_message, "InvalidParameterValue", **arguments)
        # What a trace is made of counts for nothing.
        arguments = {"QueueUrl": url, "MessageBody": "b" * most}
        sqs.send_message(**arguments, MessageSystemAttributes={"AWSTraceHeader": text("Root=1-2-3")})
    halves = [{"Id": "a", "MessageBody": "b" * (MIB // 2)}, {"Id": "b", "MessageBody": "é" * (MIB // 4)}]
    assert len(sqs.send_message_batch(QueueUrl=queue(), Entries=halves)["Successful"]) == 2
    halves[1]["MessageBody"] += "b"
    refused(sqs.send_message_batch, "BatchRequestTooLong", QueueUrl=queue(), Entries=halves)


@pytest.mark.parametrize("body", ["\0", "\x0b", "a\x1fb", "\ufffe", "\uffff"])
def test_a_body_with_characters_that_aws_does_not_take_is_refused(sqs: Any, queue: Named, body: str) -> None:
    url = queue()
    refused(sqs.send_message, "InvalidMessageContents", QueueUrl=url, MessageBody=body)
    answer = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": "a", "MessageBody": body}, {"Id": "b", "MessageBody": "\t\n\r\U0010ffff"}],
    )
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [("a", "InvalidMessageContents")]
    assert [one["Body"] for one in received(sqs, url)] == ["\t\n\r\U0010ffff"]


def test_a_message_is_delayed_as_its_queue_says_or_as_it_says_itself(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url = queue(DelaySeconds="60")
    sqs.send_message(QueueUrl=url, MessageBody="queue")
    sqs.send_message(QueueUrl=url, MessageBody="own", DelaySeconds=900)
    sqs.send_message(QueueUrl=url, MessageBody="none", DelaySeconds=0)
    for seconds, bodies in ((0, ["none"]), (59, []), (1, ["queue"]), (839, []), (1, ["own"])):
        server.clock.advance(seconds)
        assert [one["Body"] for one in received(sqs, url, VisibilityTimeout=43_200)] == bodies


def test_receives_are_counted_in_all_the_queues_that_a_message_was_in(
    sqs: Any, queue: Named, server: Serving
) -> None:
    source, dead = dead_letters(sqs, queue, 1)
    for count in ("2", "3"):
        [got] = received(sqs, dead, VisibilityTimeout=0)
        assert got["Attributes"]["ApproximateReceiveCount"] == count
        server.clock.advance(1)
    sqs.send_message(QueueUrl=source, MessageBody="another")
    assert received(sqs, source)[0]["Attributes"]["ApproximateReceiveCount"] == "1"


def test_what_may_be_asked_of_a_message_is_what_the_page_of_aws_has(sqs: Any, queue: Named) -> None:
    url = queue()
    names = installed()["shapes"]["MessageSystemAttributeName"]["enum"]
    sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=names)
    sqs.receive_message(QueueUrl=url, AttributeNames=[*names, "SqsManagedSseEnabled"])
    refused(sqs.receive_message, "InvalidAttributeName", QueueUrl=url, AttributeNames=["Colour"])


@pytest.mark.parametrize(
    "asked",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"VisibilityTimeout": -1},
        {"VisibilityTimeout": 43_201},
        {"WaitTimeSeconds": -1},
        {"WaitTimeSeconds": 21},
    ],
)
def test_a_receive_beyond_its_limits_is_refused(sqs: Any, queue: Named, asked: dict[str, int]) -> None:
    refused(sqs.receive_message, "InvalidParameterValue", QueueUrl=queue(), **asked)


def test_a_poll_waits_for_what_is_sent_as_long_as_it_or_its_queue_says(sqs: Any, queue: Named) -> None:
    patient, hasty = queue(ReceiveMessageWaitTimeSeconds="20"), queue()
    for url, own in ((patient, {}), (hasty, {"WaitTimeSeconds": 20})):
        timer = threading.Timer(0.3, lambda url=url: sqs.send_message(QueueUrl=url, MessageBody="b"))
        began_s = time.monotonic()
        timer.start()
        assert [one["Body"] for one in received(sqs, url, **own)] == ["b"]
        assert 0.2 < time.monotonic() - began_s < TIMEOUT_S / 2
        timer.join()
    began_s = time.monotonic()
    assert received(sqs, patient, WaitTimeSeconds=0) == received(sqs, hasty) == []
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    assert received(sqs, hasty, WaitTimeSeconds=1) == []
    assert time.monotonic() - began_s >= 1


# -- handles


def test_an_older_handle_of_a_standard_queue_deletes_nothing_and_is_no_error(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url, other = queue(VisibilityTimeout="10"), queue()
    sqs.send_message(QueueUrl=url, MessageBody="b")
    [first] = received(sqs, url)
    refused(
        sqs.delete_message, "ReceiptHandleIsInvalid", QueueUrl=other, ReceiptHandle=first["ReceiptHandle"]
    )
    server.clock.advance(10)
    [second] = received(sqs, url)
    assert first["ReceiptHandle"] != second["ReceiptHandle"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert server_count(sqs, url) == 1
    arguments = {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 5}
    refused(sqs.change_message_visibility, "MessageNotInflight", **arguments)
    for _ in range(2):  # Once more is no error either.
        sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
    assert server_count(sqs, url) == 0


def in_line_again(server: Serving, seconds: float) -> None:
    """What was held for no longer than this; the store has noticed."""
    server.clock.advance(seconds)
    while server.ps.sweep():
        pass


def test_the_latest_handle_of_a_standard_queue_deletes_though_its_time_is_over(
    sqs: Any, queue: Named, server: Serving
) -> None:
    """A consumer that takes longer than it said is done with its message all the same: no other has it."""
    url = queue(VisibilityTimeout="10")
    for body in ("one", "two", "three", "four"):
        attribute = {"kind": {"DataType": "Number", "StringValue": "1"}}
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attribute)
    handles = [one["ReceiptHandle"] for one in received(sqs, url, MaxNumberOfMessages=10)]
    in_line_again(server, 11)
    assert server_count(sqs, url) == 4
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handles[0])
    entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles[:3])]
    done = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in done["Successful"]] == ["0", "1", "2"]
    server.clock.advance(0.01)
    assert server_count(sqs, url) == 1
    server.clock.advance(3600)
    [last] = received(sqs, url, MaxNumberOfMessages=10)
    assert last["Body"] == "four"
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=last["ReceiptHandle"], VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=last["ReceiptHandle"])
    server.clock.advance(3600)
    assert received(sqs, url) == []


def test_a_dead_letter_is_deleted_by_its_latest_handle_though_its_time_is_over(
    sqs: Any, queue: Named, server: Serving
) -> None:
    dead = queue(VisibilityTimeout="10")
    policy = {"deadLetterTargetArn": arn_of(dead), "maxReceiveCount": 1}
    url = queue(RedrivePolicy=json.dumps(policy), VisibilityTimeout="10")
    sqs.send_message(QueueUrl=url, MessageBody="b")
    assert len(received(sqs, url)) == 1
    in_line_again(server, 11)
    [letter] = received(sqs, dead)
    in_line_again(server, 11)
    sqs.delete_message(QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"])
    server.clock.advance(3600)
    assert received(sqs, dead) == received(sqs, url) == []


# -- fifo


def in_group(sqs: Any, url: str, group: str, body: str, **more: Any) -> dict[str, str]:
    sent = sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)
    return dict(sent)


def test_a_group_waits_for_its_message_in_flight_and_others_go_on(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url = queue(fifo=True, ContentBasedDeduplication="true", VisibilityTimeout="30")
    for body in ("g1", "g2", "h1"):
        in_group(sqs, url, body[0], body)

    def bodies() -> list[str]:
        return [one["Body"] for one in received(sqs, url, MaxNumberOfMessages=10)]

    assert bodies() == ["g1", "h1"]
    assert bodies() == []
    server.clock.advance(30)
    assert bodies() == ["g1", "h1"]  # Each keeps its place.
    server.clock.advance(30)
    [late, _] = received(sqs, url, MaxNumberOfMessages=10)
    server.clock.advance(30)
    [again, _] = received(sqs, url, MaxNumberOfMessages=10)
    assert late["Body"] == again["Body"] == "g1"
    arguments = {"QueueUrl": url, "ReceiptHandle": late["ReceiptHandle"]}
    refused(sqs.delete_message, "InvalidParameterValue", **arguments)
    [failed] = sqs.delete_message_batch(
        QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": late["ReceiptHandle"]}]
    )["Failed"]
    assert failed["Code"] == "InvalidParameterValue"
    for _ in range(2):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert bodies() == ["g2"]


def test_a_duplicate_is_known_for_five_minutes_by_its_id_or_its_body(
    sqs: Any, queue: Named, server: Serving
) -> None:
    url = queue(fifo=True, ContentBasedDeduplication="true")
    first = in_group(sqs, url, "g", "b", MessageAttributes={"a": text("1")})
    assert in_group(sqs, url, "g", "b", MessageAttributes={"a": text("2")})["MessageId"] == first["MessageId"]
    named = in_group(sqs, url, "h", "other", MessageDeduplicationId=hashlib.sha256(b"b").hexdigest())
    assert named["MessageId"] == first["MessageId"]
    [got] = received(sqs, url)
    assert got["Attributes"]["MessageDeduplicationId"] == hashlib.sha256(b"b").hexdigest()
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    server.clock.advance(299)
    assert in_group(sqs, url, "g", "b")["SequenceNumber"] == first["SequenceNumber"]
    assert server_count(sqs, url) == 0
    server.clock.advance(1)
    assert int(in_group(sqs, url, "g", "b")["SequenceNumber"]) > int(first["SequenceNumber"])
    own = in_group(sqs, url, "g", "b", MessageDeduplicationId="own")
    assert in_group(sqs, url, "g", "new", MessageDeduplicationId="own")["MessageId"] == own["MessageId"]
    assert server_count(sqs, url) == 2


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"MessageDeduplicationId": "d"}, "MissingParameter"),
        ({"MessageGroupId": "g"}, "InvalidParameterValue"),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 1}, "InvalidParameterValue"),
        *(
            ({"MessageGroupId": "g", "MessageDeduplicationId": "d", name: bad}, "InvalidParameterValue")
            for name in ("MessageGroupId", "MessageDeduplicationId")
            for bad in ("", "a b", "é", "x" * 129)
        ),
    ],
)
def test_a_message_that_a_fifo_queue_does_not_take_is_refused(
    sqs: Any, queue: Named, more: dict[str, Any], code: str
) -> None:
    url = queue(fifo=True)
    refused(sqs.send_message, code, QueueUrl=url, MessageBody="b", **more)
    every_mark = "".join(map(chr, range(0x21, 0x7F)))
    in_group(sqs, url, every_mark, "b", MessageDeduplicationId="x" * 128, DelaySeconds=0)
    assert received(sqs, url)[0]["Attributes"]["MessageGroupId"] == every_mark


# -- as bytes


def posted(server: Serving, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    request = Request(server.url + "/", body, headers, method="POST")
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
    except HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()


def test_a_queue_that_is_not_there_has_its_name_in_either_protocol(server: Serving) -> None:
    url = f"{server.url}/000000000000/nowhere"
    target = {"X-Amz-Target": "AmazonSQS.PurgeQueue", "Content-Type": "application/x-amz-json-1.0"}
    status, headers, body = posted(server, target, json.dumps({"QueueUrl": url}).encode())
    assert (status, json.loads(body)["__type"]) == (400, "com.amazonaws.sqs#QueueDoesNotExist")
    assert headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert headers["content-type"] == "application/x-amz-json-1.0"
    status, headers, body = posted(server, {}, urlencode({"Action": "PurgeQueue", "QueueUrl": url}).encode())
    assert (status, headers["content-type"]) == (400, "text/xml")
    assert b"<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>" in body


def test_a_single_argument_of_a_form_needs_no_number(server: Serving) -> None:
    server.ps.create_queue("old")
    at = {"QueueUrl": f"{server.url}/000000000000/old"}
    change = {"Attribute.Name": "VisibilityTimeout", "Attribute.Value": "35"}
    made = urlencode({"Action": "SetQueueAttributes", **at, **change}).encode()
    assert posted(server, {}, made)[0] == 200
    asked = urlencode({"Action": "GetQueueAttributes", **at, "AttributeName": "VisibilityTimeout"}).encode()
    assert (
        b"<Attribute><Name>VisibilityTimeout</Name><Value>35</Value></Attribute>"
        in posted(server, {}, asked)[2]
    )
