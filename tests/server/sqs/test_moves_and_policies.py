"""Move tasks and policies, by AWS's own client in both protocols; and tasks that outlive their server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

import penstock
from penstock import NewMessage, Penstock
from penstock.clock import ManualClock, SystemClock
from penstock.server.calls import StoreCalls
from penstock.server.sqs import moves
from penstock.server.sqs.moves import Moves
from penstock.server_config import Limits
from tests.server.sqs.conftest import Named
from tests.server.sqs.serving import Serving
from tests.server.sqs.test_actions import arn_of, code_of, name_of

TIMEOUT_S = 20.0


def redrive(dead: str, most: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": arn_of(dead), "maxReceiveCount": most})


def dead_letters(sqs: Any, queue: Named, count: int, fifo: bool = False) -> tuple[str, str]:
    """A queue, and its dead-letter queue with so many of its messages."""
    dead = queue(fifo=fifo)
    source = queue(fifo=fifo, RedrivePolicy=redrive(dead))
    for n in range(count):
        more = {"MessageGroupId": "g", "MessageDeduplicationId": str(n)} if fifo else {}
        sqs.send_message(QueueUrl=source, MessageBody=str(n), **more)
        [got] = sqs.receive_message(QueueUrl=source)["Messages"]
        sqs.change_message_visibility(
            QueueUrl=source, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )
    return source, dead


def waiting(sqs: Any, url: str) -> int:
    name = "ApproximateNumberOfMessages"
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def settled(sqs: Any, dead: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The latest task, once it is as wanted."""
    until_ns = SystemClock().now_ns() + int(TIMEOUT_S * 1e9)
    task: dict[str, Any] = {}
    while SystemClock().now_ns() < until_ns:
        [task] = sqs.list_message_move_tasks(SourceArn=arn_of(dead))["Results"]
        if wanted(task):
            return task
    raise AssertionError(task)


def ended(task: dict[str, Any]) -> bool:
    return task["Status"] not in ("RUNNING", "CANCELLING")


@pytest.mark.parametrize("fifo", [False, True])
def test_dead_letters_go_back_to_where_they_came_from(sqs: Any, queue: Named, fifo: bool) -> None:
    source, dead = dead_letters(sqs, queue, 3, fifo)
    assert (waiting(sqs, source), waiting(sqs, dead)) == (0, 3)
    sqs.start_message_move_task(SourceArn=arn_of(dead))
    task = settled(sqs, dead, ended)
    assert task["Status"] == "COMPLETED"
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (3, 3)
    assert task["SourceArn"] == arn_of(dead)
    assert task.keys().isdisjoint({"TaskHandle", "DestinationArn", "FailureReason"})
    assert (waiting(sqs, source), waiting(sqs, dead)) == (3, 0)


def test_a_task_with_a_destination_moves_what_was_sent_there_too(sqs: Any, queue: Named) -> None:
    _, dead = dead_letters(sqs, queue, 2)
    other = queue()
    sqs.send_message(QueueUrl=dead, MessageBody="sent there")
    sqs.start_message_move_task(SourceArn=arn_of(dead), DestinationArn=arn_of(other))
    task = settled(sqs, dead, ended)
    assert (task["Status"], task["DestinationArn"]) == ("COMPLETED", arn_of(other))
    assert task["ApproximateNumberOfMessagesMoved"] == waiting(sqs, other) == 3


def test_what_has_no_queue_to_go_back_to_makes_a_task_fail(sqs: Any, queue: Named) -> None:
    source, dead = dead_letters(sqs, queue, 1)
    sqs.send_message(QueueUrl=dead, MessageBody="sent there")
    sqs.start_message_move_task(SourceArn=arn_of(dead))
    task = settled(sqs, dead, ended)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert (waiting(sqs, source), waiting(sqs, dead)) == (1, 1)


def test_a_task_keeps_to_its_rate_and_can_be_cancelled_once(sqs: Any, queue: Named) -> None:
    source, dead = dead_letters(sqs, queue, 5)
    handle = sqs.start_message_move_task(SourceArn=arn_of(dead), MaxNumberOfMessagesPerSecond=2)["TaskHandle"]
    task = settled(sqs, dead, lambda one: one["ApproximateNumberOfMessagesMoved"] > 0)
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle)
    assert (task["ApproximateNumberOfMessagesMoved"], task["MaxNumberOfMessagesPerSecond"]) == (2, 2)
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        sqs.start_message_move_task(SourceArn=arn_of(dead))
    assert sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"] == 2
    assert settled(sqs, dead, ended)["Status"] == "CANCELLED"
    assert (waiting(sqs, source), waiting(sqs, dead)) == (2, 3)
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_the_last_ten_tasks_are_listed_and_the_latest_first(sqs: Any, queue: Named, server: Serving) -> None:
    _, dead = dead_letters(sqs, queue, 0)
    for _ in range(11):
        server.clock.advance(1)
        sqs.start_message_move_task(SourceArn=arn_of(dead))
        settled(sqs, dead, ended)
    found = sqs.list_message_move_tasks(SourceArn=arn_of(dead), MaxResults=10)["Results"]
    times = [task["StartedTimestamp"] for task in found]
    assert len(times) == 10
    assert times == sorted(times, reverse=True)
    assert times[0] == server.clock.now_ns() // 1_000_000
    assert len(sqs.list_message_move_tasks(SourceArn=arn_of(dead))["Results"]) == 1
    # Of a queue of the same name that is made anew, there are none.
    sources = sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]
    for url in (*sources, dead):
        sqs.delete_queue(QueueUrl=url)
    server.clock.advance(1)
    sqs.create_queue(QueueName=name_of(dead))
    assert sqs.list_message_move_tasks(SourceArn=arn_of(dead)).get("Results", []) == []


def test_tasks_that_cannot_be_are_refused_by_name(sqs: Any, queue: Named) -> None:
    source, dead = dead_letters(sqs, queue, 0)
    fifo = queue(fifo=True)
    absent = arn_of("nothing-of-this-name")
    for arguments, code in (
        ({"SourceArn": absent}, "ResourceNotFoundException"),
        ({"SourceArn": arn_of(source)}, "InvalidParameterValue"),
        ({"SourceArn": "arn:aws:sqs:eu-west-1:000000000000:q"}, "InvalidParameterValue"),
        ({"SourceArn": arn_of(dead), "DestinationArn": absent}, "ResourceNotFoundException"),
        ({"SourceArn": arn_of(dead), "DestinationArn": "q"}, "ResourceNotFoundException"),
        ({"SourceArn": arn_of(dead), "DestinationArn": arn_of(dead)}, "InvalidParameterValue"),
        ({"SourceArn": arn_of(dead), "DestinationArn": arn_of(fifo)}, "InvalidParameterValue"),
        ({"SourceArn": arn_of(dead), "MaxNumberOfMessagesPerSecond": 501}, "InvalidParameterValue"),
    ):
        with pytest.raises(ClientError) as error:
            sqs.start_message_move_task(**arguments)
        assert code_of(error) in (code, f"{code}Exception"), arguments
    with pytest.raises(ClientError) as error:
        sqs.list_message_move_tasks(SourceArn=absent)
    assert code_of(error) == "ResourceNotFoundException"
    handle = sqs.start_message_move_task(SourceArn=arn_of(dead))["TaskHandle"]
    settled(sqs, dead, ended)
    sqs.delete_queue(QueueUrl=source)
    sqs.delete_queue(QueueUrl=dead)
    with pytest.raises(sqs.exceptions.ResourceNotFoundException):
        sqs.cancel_message_move_task(TaskHandle=handle)
    with pytest.raises(ClientError) as error:
        sqs.cancel_message_move_task(TaskHandle="bm90aGluZw==")
    assert code_of(error).startswith("InvalidParameterValue")


def buried(ps: Penstock, count: int) -> None:
    ps.create_queue("dead")
    ps.create_queue("work", dead_letter="dead")
    work = ps.queue("work")
    work.enqueue_many([NewMessage(b"x") for _ in range(count)])
    work.reject([one.receipt for one in work.lease(count)])


def test_a_task_goes_on_at_once_after_a_stop_and_after_a_kill_when_nobody_is_seen_to_run_it() -> None:
    clock = ManualClock()

    async def run(ps: Penstock) -> None:
        calls = StoreCalls(ps, Limits())
        first = Moves(ps, calls, clock)
        await first.start("dead", None, 1)
        while not (await first.tasks("dead"))[0].moved:
            await asyncio.sleep(0)
        await first.stop()
        assert (await first.tasks("dead"))[0].status == "RUNNING"

        second = Moves(ps, calls, clock)
        await second.resume()
        while (await second.tasks("dead"))[0].moved < 2:
            await asyncio.sleep(0)
        for loop in second._loops:  # As if it were killed: it lets go of nothing.
            loop.cancel()

        third = Moves(ps, calls, clock)
        assert (third._step("dead") or 0) > moves.PAUSE_S  # It waits: the second may be alive.
        assert (await third.tasks("dead"))[0].moved == 2
        clock.advance(moves.ALIVE_NS / 1e9)
        assert [third._step("dead"), third._step("dead")] == [moves.PAUSE_S, None]
        [task] = await third.tasks("dead")
        assert (task.status, task.moved) == ("COMPLETED", 3)
        assert third._moving() == frozenset()
        calls.close()

    with penstock.open("memory:", clock=clock) as ps:
        buried(ps, 3)
        asyncio.run(asyncio.wait_for(run(ps), TIMEOUT_S))
        assert ps.queue("work").length() == 3


def test_a_task_behind_one_that_was_cancelled_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PAUSE_S", 600.0)
    clock = ManualClock()

    async def run(ps: Penstock) -> None:
        calls = StoreCalls(ps, Limits())
        tasks = Moves(ps, calls, clock)
        rated = await tasks.start("dead", None, 1)
        while not (await tasks.tasks("dead"))[0].moved:
            await asyncio.sleep(0)
        await tasks.cancel("dead", rated.id)
        while (await tasks.tasks("dead"))[0].is_active:
            await asyncio.sleep(0)
        await tasks.start("dead", None, None)
        while (await tasks.tasks("dead"))[0].is_active:
            await asyncio.sleep(0)
        await tasks.stop()
        calls.close()

    with penstock.open("memory:", clock=clock) as ps:
        buried(ps, 3)
        asyncio.run(asyncio.wait_for(run(ps), TIMEOUT_S))
        assert ps.queue("work").length() == 3


def test_a_task_that_begins_when_the_one_before_has_just_ended_is_run() -> None:
    clock = ManualClock()

    class Calls(StoreCalls):
        """What found no task any more is told to the loop when the next one is there already."""

        tasks: Moves
        began = False

        async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            found = await super().run(function, *args, **kwargs)
            if function.__name__ == "_step" and found is None and not self.began:
                self.began = True
                await self.tasks.start("dead", "other", None)
            return found

    async def run(ps: Penstock) -> None:
        calls = Calls(ps, Limits())
        tasks = calls.tasks = Moves(ps, calls, clock)
        await tasks.start("dead", None, None)
        while not calls.began or (await tasks.tasks("dead"))[0].is_active:
            await asyncio.sleep(0)
        await tasks.stop()
        calls.close()

    with penstock.open("memory:", clock=clock) as ps:
        buried(ps, 3)
        ps.create_queue("other")
        asyncio.run(asyncio.wait_for(run(ps), TIMEOUT_S))
        assert ps.queue("work").length() == 3


def test_a_task_ends_though_what_it_moved_comes_back() -> None:
    clock = ManualClock()
    with penstock.open("memory:", clock=clock) as ps:
        buried(ps, 3)
        calls = StoreCalls(ps, Limits())
        tasks = Moves(ps, calls, clock)
        tasks._started("dead", None, 1)
        for _ in range(3):
            tasks._step("dead")
            work = ps.queue("work")
            work.reject([one.receipt for one in work.lease(10)])
        assert [(one.status, one.moved) for one in tasks._tasks("dead")] == [("COMPLETED", 3)]
        calls.close()


def test_a_permission_is_a_statement_of_the_policy_until_it_is_removed(sqs: Any, queue: Named) -> None:
    url = queue()

    def policy() -> Any:
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"]).get("Attributes", {})
        return json.loads(found["Policy"]) if found else None

    assert policy() is None
    sqs.add_permission(QueueUrl=url, Label="one", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    sqs.add_permission(
        QueueUrl=url, Label="two", AWSAccountIds=["111122223333", "444455556666"], Actions=["*", "PurgeQueue"]
    )
    assert policy() == {
        "Version": "2012-10-17",
        "Id": f"{arn_of(url)}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
                "Action": "SQS:SendMessage",
                "Resource": arn_of(url),
            },
            {
                "Sid": "two",
                "Effect": "Allow",
                "Principal": {"AWS": ["arn:aws:iam::111122223333:root", "arn:aws:iam::444455556666:root"]},
                "Action": ["SQS:*", "SQS:PurgeQueue"],
                "Resource": arn_of(url),
            },
        ],
    }
    sqs.remove_permission(QueueUrl=url, Label="one")
    assert [statement["Sid"] for statement in policy()["Statement"]] == ["two"]
    sqs.remove_permission(QueueUrl=url, Label="two")
    assert policy() is None
    own = '{"Version": "2012-10-17", "Statement": {"Sid": "mine"}}'
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": own})
    sqs.add_permission(QueueUrl=url, Label="one", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    assert [statement["Sid"] for statement in policy()["Statement"]] == ["mine", "one"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert policy() is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Label": "there"}, "InvalidParameterValue"),
        ({"Label": "a b"}, "InvalidParameterValue"),
        ({"AWSAccountIds": ["me"]}, "InvalidParameterValue"),
        ({"Actions": ["Fly"]}, "InvalidParameterValue"),
        ({"Actions": ["SendMessage"] * 8}, "OverLimit"),
        ({"Actions": []}, "MissingParameter"),
        ({"AWSAccountIds": []}, "MissingParameter"),
    ],
)
def test_a_permission_that_cannot_be_is_refused(
    sqs: Any, queue: Named, change: dict[str, Any], code: str
) -> None:
    url = queue()
    good = {"QueueUrl": url, "Label": "there", "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}
    sqs.add_permission(**good)
    with pytest.raises(ClientError) as error:
        sqs.add_permission(**{**good, "Label": "new", **change})
    assert code_of(error) == code
    with pytest.raises(ClientError):
        sqs.remove_permission(QueueUrl=url, Label="new")
