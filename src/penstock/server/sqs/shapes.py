"""What SQS's actions take and answer, as AWS's model has it: one set of structs for both protocols."""

# ruff: noqa: D101  (AWS documents them; their names are its own)

from __future__ import annotations

import msgspec


def _aws(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_")).replace("Md5", "MD5")


class Shape(msgspec.Struct, kw_only=True, rename=_aws, omit_defaults=True):
    """The root of all of them; what is not there is None, and is not sent."""


class OfQueue(Shape):
    """Arguments of an action on a queue, and of those that need nothing else."""

    queue_url: str


class CreateQueue(Shape):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = msgspec.field(default_factory=dict, name="tags")


class GetQueueUrl(Shape):
    queue_name: str
    queue_owner_aws_account_id: str | None = msgspec.field(default=None, name="QueueOwnerAWSAccountId")


class QueueUrl(Shape):
    queue_url: str


class ListQueues(Shape):
    queue_name_prefix: str = ""
    max_results: int | None = None
    next_token: str | None = None


class QueueUrls(Shape):
    queue_urls: list[str]
    next_token: str | None = None


class ListSources(OfQueue):
    max_results: int | None = None
    next_token: str | None = None


class Sources(Shape):
    """The one answer whose list has a small letter, and is there when it is empty."""

    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class GetAttributes(OfQueue):
    attribute_names: list[str] = []


class SetAttributes(OfQueue):
    attributes: dict[str, str] = {}


class Attributes(Shape):
    attributes: dict[str, str] = {}


class TagQueue(OfQueue):
    tags: dict[str, str] = {}


class UntagQueue(OfQueue):
    tag_keys: list[str] = []


class AddPermission(OfQueue):
    label: str
    aws_account_ids: list[str] = msgspec.field(default_factory=list, name="AWSAccountIds")
    actions: list[str] = []


class RemovePermission(OfQueue):
    label: str


class StartMove(Shape):
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class MoveStarted(Shape):
    task_handle: str


class CancelMove(Shape):
    task_handle: str


class MoveCancelled(Shape):
    approximate_number_of_messages_moved: int


class ListMoves(Shape):
    source_arn: str
    max_results: int | None = None


class MoveTask(Shape, kw_only=True):
    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int
    approximate_number_of_messages_to_move: int
    failure_reason: str | None = None
    started_timestamp: int


class MoveTasks(Shape):
    results: list[MoveTask] = []


class Tags(Shape):
    tags: dict[str, str] = {}


class AttributeValue(Shape):
    """Of a message: text or bytes, which are base64 on the way."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None


class Sent(Shape):
    """One message, as it is sent."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(Sent, kw_only=True):
    queue_url: str


class SentEntry(Sent, kw_only=True):
    id: str


class SendMessageBatch(OfQueue):
    entries: list[SentEntry] = []


class Receipt(Shape):
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class ReceiptEntry(Receipt, kw_only=True):
    id: str


class FailedEntry(Shape):
    id: str
    code: str
    sender_fault: bool
    message: str


class SentBatch(Shape):
    successful: list[ReceiptEntry] = []
    failed: list[FailedEntry] = []


class ReceiveMessage(OfQueue):
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class Received(Shape):
    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] = {}
    md5_of_message_attributes: str | None = None
    message_attributes: dict[str, AttributeValue] = {}


class ReceivedMessages(Shape):
    messages: list[Received] = []


class DeleteMessage(OfQueue):
    receipt_handle: str


class HandleEntry(Shape):
    id: str
    receipt_handle: str


class DeleteMessageBatch(OfQueue):
    entries: list[HandleEntry] = []


class ChangeVisibility(OfQueue):
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(HandleEntry):
    visibility_timeout: int | None = None


class ChangeVisibilityBatch(OfQueue):
    entries: list[VisibilityEntry] = []


class DoneEntry(Shape):
    id: str


class DoneBatch(Shape):
    successful: list[DoneEntry] = []
    failed: list[FailedEntry] = []
