"""Move tasks as SQS has them: started, cancelled and listed."""

from __future__ import annotations

import base64
import binascii

import msgspec

from penstock.errors import QueueNotFound
from penstock.server.access import STORE
from penstock.server.sqs import shapes
from penstock.server.sqs.call import Call
from penstock.server.sqs.checks import check_range, invalid
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.moves import MOST_TASKS, SLICE, Task

_NS_PER_MS = 1_000_000


class _Handle(msgspec.Struct, rename="camel"):
    task_id: str
    source_arn: str


def handle(task: Task, source_arn: str) -> str:
    return base64.b64encode(msgspec.json.encode(_Handle(task.id, source_arn))).decode()


def parsed(text: str) -> _Handle:
    """What a handle says, or `InvalidParameterValue`."""
    try:
        return msgspec.json.decode(base64.b64decode(text.encode(), validate=True), type=_Handle)
    except (binascii.Error, ValueError):
        raise invalid("TaskHandle", text, "It is none that was answered.") from None


async def start_message_move_task(call: Call, args: shapes.StartMove) -> shapes.MoveStarted:
    check_range("MaxNumberOfMessagesPerSecond", args.max_number_of_messages_per_second, 1, SLICE)
    destination = None
    if args.destination_arn is not None:
        destination = call.place.queue_of_arn(args.destination_arn)
        if destination is None:
            raise _not_found("DestinationArn")
    # Without a destination messages go back to where they came from, wherever that is.
    if not call.who.may("enqueue", STORE if destination is None else destination):
        raise SqsError("AccessDenied", "Access to the destination of the messages is denied.")
    await call.calls.run(_check_queues, call, destination)
    task = await call.moves.start(call.queue, destination, args.max_number_of_messages_per_second)
    return shapes.MoveStarted(task_handle=handle(task, args.source_arn))


def _check_queues(call: Call, destination: str | None) -> None:
    queues = {settings.name: settings for settings in call.ps.queues()}
    if call.queue not in queues:
        raise _not_found("SourceArn")
    if not any(settings.dead_letter == call.queue for settings in queues.values()):
        raise invalid("SourceArn", call.queue, "Source queue must be configured as a Dead Letter Queue.")
    if destination is None:
        return
    if destination not in queues:
        raise _not_found("DestinationArn")
    if destination == call.queue:
        raise invalid("DestinationArn", destination, "It is the source queue.")
    if queues[destination].fifo != queues[call.queue].fifo:
        raise invalid("DestinationArn", destination, "It must be of the same type as the source queue.")


async def cancel_message_move_task(call: Call, args: shapes.CancelMove) -> shapes.MoveCancelled:
    try:
        moved = await call.moves.cancel(call.queue, parsed(args.task_handle).task_id)
    except QueueNotFound:
        raise SqsError("ResourceNotFoundException", "Task does not exist.") from None
    return shapes.MoveCancelled(approximate_number_of_messages_moved=moved)


async def list_message_move_tasks(call: Call, args: shapes.ListMoves) -> shapes.MoveTasks:
    check_range("MaxResults", args.max_results, 1, MOST_TASKS)
    try:
        tasks = await call.moves.tasks(call.queue)
    except QueueNotFound:
        raise _not_found("SourceArn") from None
    shown = tasks[: args.max_results or 1]
    return shapes.MoveTasks(results=[_shown(call, task, args.source_arn) for task in shown])


def _shown(call: Call, task: Task, source_arn: str) -> shapes.MoveTask:
    return shapes.MoveTask(
        task_handle=handle(task, source_arn) if task.status == "RUNNING" else None,
        status=task.status,
        source_arn=source_arn,
        destination_arn=None if task.destination is None else call.place.arn(task.destination),
        max_number_of_messages_per_second=task.per_second,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        failure_reason=task.failure,
        started_timestamp=task.started_at_ns // _NS_PER_MS,
    )


def _not_found(parameter: str) -> SqsError:
    return SqsError(
        "ResourceNotFoundException",
        f"The resource that you specified for the {parameter} parameter doesn't exist.",
    )
