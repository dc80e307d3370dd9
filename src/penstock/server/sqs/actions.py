"""The table of actions: what each takes, what it answers, who may, and what does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock.server.access import PERMISSIONS, Permission
from penstock.server.sqs import moving, policies, queues, receiving, sending, shapes
from penstock.server.sqs.call import Call


class Action(NamedTuple):
    """One of SQS's actions. Any one of the permissions is enough."""

    arguments: type[shapes.Shape]
    answer: type[shapes.Shape] | None
    permissions: tuple[Permission, ...]
    function: Callable[[Call, Any], Awaitable[shapes.Shape | None]]

    @property
    def is_audited(self) -> bool:
        """Administration is written down before it is done."""
        return self.permissions == _ADMIN


_ADMIN: tuple[Permission, ...] = ("admin",)
_READ: tuple[Permission, ...] = ("read",)
_SEND: tuple[Permission, ...] = ("enqueue",)
_CONSUME: tuple[Permission, ...] = ("consume",)

ACTIONS: dict[str, Action] = {
    "AddPermission": Action(shapes.AddPermission, None, _ADMIN, policies.add_permission),
    "CancelMessageMoveTask": Action(
        shapes.CancelMove, shapes.MoveCancelled, _ADMIN, moving.cancel_message_move_task
    ),
    "ChangeMessageVisibility": Action(
        shapes.ChangeVisibility, None, _CONSUME, receiving.change_message_visibility
    ),
    "ChangeMessageVisibilityBatch": Action(
        shapes.ChangeVisibilityBatch, shapes.DoneBatch, _CONSUME, receiving.change_message_visibility_batch
    ),
    "CreateQueue": Action(shapes.CreateQueue, shapes.QueueUrl, _ADMIN, queues.create_queue),
    "DeleteMessage": Action(shapes.DeleteMessage, None, _CONSUME, receiving.delete_message),
    "DeleteMessageBatch": Action(
        shapes.DeleteMessageBatch, shapes.DoneBatch, _CONSUME, receiving.delete_message_batch
    ),
    "DeleteQueue": Action(shapes.OfQueue, None, _ADMIN, queues.delete_queue),
    "GetQueueAttributes": Action(shapes.GetAttributes, shapes.Attributes, _READ, queues.get_queue_attributes),
    # Whoever may do anything with a queue may find it: clients ask before they send or receive.
    "GetQueueUrl": Action(shapes.GetQueueUrl, shapes.QueueUrl, PERMISSIONS, queues.get_queue_url),
    "ListDeadLetterSourceQueues": Action(
        shapes.ListSources, shapes.Sources, _READ, queues.list_dead_letter_source_queues
    ),
    "ListMessageMoveTasks": Action(shapes.ListMoves, shapes.MoveTasks, _READ, moving.list_message_move_tasks),
    "ListQueueTags": Action(shapes.OfQueue, shapes.Tags, _READ, queues.list_queue_tags),
    "ListQueues": Action(shapes.ListQueues, shapes.QueueUrls, _READ, queues.list_queues),
    "PurgeQueue": Action(shapes.OfQueue, None, _ADMIN, queues.purge_queue),
    "ReceiveMessage": Action(
        shapes.ReceiveMessage, shapes.ReceivedMessages, _CONSUME, receiving.receive_message
    ),
    "RemovePermission": Action(shapes.RemovePermission, None, _ADMIN, policies.remove_permission),
    "SendMessage": Action(shapes.SendMessage, shapes.Receipt, _SEND, sending.send_message),
    "SendMessageBatch": Action(shapes.SendMessageBatch, shapes.SentBatch, _SEND, sending.send_message_batch),
    "SetQueueAttributes": Action(shapes.SetAttributes, None, _ADMIN, queues.set_queue_attributes),
    "StartMessageMoveTask": Action(
        shapes.StartMove, shapes.MoveStarted, _ADMIN, moving.start_message_move_task
    ),
    "TagQueue": Action(shapes.TagQueue, None, _ADMIN, queues.tag_queue),
    "UntagQueue": Action(shapes.UntagQueue, None, _ADMIN, queues.untag_queue),
}
