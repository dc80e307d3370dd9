"""The delay of a fifo queue, as AWS documents it: for all of its messages, whenever it is set."""

from __future__ import annotations

from typing import Any

from tests.server.sqs.conftest import Named
from tests.server.sqs.serving import Serving
from tests.server.sqs.test_as_documented import in_group, refused, shown
from tests.server.sqs.test_attributes import received


def test_a_fifo_queue_delays_all_of_its_messages_also_those_that_it_has(
    sqs: Any, queue: Named, server: Serving
) -> None:
    def bodies() -> list[str]:
        return sorted(one["Body"] for one in received(sqs, url, MaxNumberOfMessages=10))

    url = queue(fifo=True, ContentBasedDeduplication="true", DelaySeconds="60")
    for group, body in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        in_group(sqs, url, group, body)
    counts = shown(sqs, url)
    assert counts["DelaySeconds"] == "60"
    assert (counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesDelayed"]) == ("0", "3")
    server.clock.advance(59)
    assert bodies() == []
    server.clock.advance(1)
    assert bodies() == ["a1", "b1"]
    in_group(sqs, url, "c", "c1")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "900"})
    server.clock.advance(70)
    in_group(sqs, url, "c", "c2")
    assert [body for body in bodies() if body[0] == "c"] == []
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "70"})
    assert [body for body in bodies() if body[0] == "c"] == ["c1"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    assert shown(sqs, url)["ApproximateNumberOfMessagesDelayed"] == "0"
    refused(
        sqs.set_queue_attributes, "InvalidAttributeValue", QueueUrl=url, Attributes={"DelaySeconds": "901"}
    )
