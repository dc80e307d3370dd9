"""Queues: made, found, listed, changed, emptied and deleted; their attributes and their tags."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any

from penstock.clock import NS_PER_S
from penstock.errors import QueueAlreadyExists, QueueNotFound
from penstock.server.sqs import attributes, shapes
from penstock.server.sqs.call import Call
from penstock.server.sqs.checks import check_range, invalid, missing
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.place import Place
from penstock.settings import QueueSettings

MOST_RESULTS = 1000
MOST_TAGS = 50
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TAG = re.compile(r"[\w\s.:/=+@-]*")


async def create_queue(call: Call, args: shapes.CreateQueue) -> shapes.QueueUrl:
    """The queue, made; or, if it is there already with all of these attributes, as it is."""
    name, wanted = args.queue_name, args.attributes
    fifo = name.endswith(".fifo")
    if not _NAME.fullmatch(name.removesuffix(".fifo")) or len(name) > 80:
        raise SqsError(
            "InvalidParameterValue",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        )
    if not fifo and wanted.get("FifoQueue") == "true":
        raise invalid("QueueName", name, "The name of a FIFO queue must end with the .fifo suffix.")
    settings, notes = attributes.changes(wanted, call.place, fifo=fifo)
    if fifo and "FifoQueue" not in wanted:
        raise invalid("QueueName", name, "A name that ends in .fifo goes with the attribute FifoQueue=true.")
    notes = {"sqs:MessageRetentionPeriod": str(attributes.RETENTION_S), **notes}
    settings = {"dead_letter": None, "max_attempts": attributes.ENDLESS_ATTEMPTS, **settings, "fifo": fifo}
    notes = attributes.annotated({}, notes) | _tagged(args.tags)

    def create() -> None:
        _check_dead_letter(call, name, settings["dead_letter"], fifo)
        try:
            call.ps.create_queue(name, annotations=notes, **settings)
        except QueueAlreadyExists:
            queue = call.ps.queue(name)
            has = attributes.shown(queue.settings(), queue.stats(), call.place)
            if any(has.get(key, "") != value for key, value in _normal(wanted, call.place).items()):
                raise SqsError(
                    "QueueNameExists", "A queue already exists with the same name and other attributes."
                ) from None

    await call.calls.run(create)
    call.known.forget(name)
    return shapes.QueueUrl(queue_url=call.url(name))


def _normal(wanted: dict[str, str], place: Place) -> dict[str, str]:
    """Attributes as they would be shown: a number or a policy can be written in several ways."""
    normal = {key: str(int(value)) if key in attributes.NUMBERS else value for key, value in wanted.items()}
    settings, notes = attributes.changes(
        {key: wanted[key] for key in ("RedrivePolicy", "RedriveAllowPolicy") if key in wanted},
        place,
        fifo=False,
    )
    if "RedrivePolicy" in wanted:
        target, most = settings["dead_letter"], settings["max_attempts"]
        normal["RedrivePolicy"] = attributes.redrive_policy(place, target, most) if target else ""
    if "RedriveAllowPolicy" in wanted:
        normal["RedriveAllowPolicy"] = notes[attributes.PREFIX + "RedriveAllowPolicy"]
    return normal


def _check_dead_letter(call: Call, source: str, target: str | None, fifo: bool) -> None:
    """Messages go there in the name of who sets it: it takes the right to send there."""
    if target is None:
        return
    if not call.who.may("enqueue", target):
        raise SqsError("AccessDenied", "Access to the dead-letter queue is denied.")
    try:
        there = call.ps.queue(target).settings()
    except QueueNotFound:
        raise invalid("RedrivePolicy", target, "Dead letter target does not exist.") from None
    if not attributes.allows_source(there, call.place.arn(source)):
        raise invalid("RedrivePolicy", target, "Its RedriveAllowPolicy does not allow this source queue.")
    if there.fifo != fifo:
        raise invalid("RedrivePolicy", target, "Dead-letter queue must be same type of queue as the source.")


async def get_queue_url(call: Call, args: shapes.GetQueueUrl) -> shapes.QueueUrl:
    await call.settings()
    if args.queue_owner_aws_account_id not in (None, call.place.account):
        raise SqsError("QueueDoesNotExist", "The specified queue does not exist: there is one account here.")
    return shapes.QueueUrl(queue_url=call.url(args.queue_name))


async def list_queues(call: Call, args: shapes.ListQueues) -> shapes.QueueUrls:
    queues = await call.calls.run(call.ps.queues)
    names = (queue.name for queue in queues if queue.name.startswith(args.queue_name_prefix))
    urls, token = _page(call, names, args.max_results, args.next_token)
    return shapes.QueueUrls(queue_urls=urls, next_token=token)


async def list_dead_letter_source_queues(call: Call, args: shapes.ListSources) -> shapes.Sources:
    """Of these, those that the caller may know of."""
    await call.settings()
    queues = await call.calls.run(call.ps.queues)
    names = (q.name for q in queues if q.dead_letter == call.queue and call.who.may("read", q.name))
    urls, token = _page(call, names, args.max_results, args.next_token)
    return shapes.Sources(queue_urls=urls, next_token=token)


def _page(
    call: Call, names: Iterable[str], most: int | None, token: str | None
) -> tuple[list[str], str | None]:
    """Names are in order, and a token is the last one of the page before."""
    check_range("MaxResults", most, 1, MOST_RESULTS)
    after = ""
    if token is not None:
        try:
            after = base64.b64decode(token.encode(), b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raise invalid("NextToken", token, "It is none that was answered.") from None
    found = [name for name in names if name > after]
    page = found[: most or MOST_RESULTS]
    more = most is not None and len(found) > len(page)
    following = base64.urlsafe_b64encode(page[-1].encode()).decode() if more else None
    return [call.url(name) for name in page], following


async def delete_queue(call: Call, args: shapes.OfQueue) -> None:
    call.known.forget(call.queue)
    await call.calls.run(call.ps.delete_queue, call.queue)
    call.known.forget(call.queue)
    call.memory.forget(call.queue)


async def purge_queue(call: Call, args: shapes.OfQueue) -> None:
    """What is in flight goes as well. Once a minute, as SQS has it."""

    def purge() -> None:
        queue = call.ps.queue(call.queue)
        queue.purge()
        queue.purge("leased")

    with call.memory.purging(call.queue):
        await call.calls.run(purge)


async def get_queue_attributes(call: Call, args: shapes.GetAttributes) -> shapes.Attributes:
    for name in args.attribute_names:
        if name not in attributes.READABLE:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name:.80}.")

    def read() -> dict[str, str]:
        queue = call.ps.queue(call.queue)
        return attributes.shown(queue.settings(), queue.stats(), call.place)

    shown = await call.calls.run(read)
    if "All" not in args.attribute_names:
        shown = {name: shown[name] for name in args.attribute_names if name in shown}
    return shapes.Attributes(attributes=shown)


async def set_queue_attributes(call: Call, args: shapes.SetAttributes) -> None:
    if not args.attributes:
        raise missing("Attributes")
    if "FifoQueue" in args.attributes:
        raise SqsError("InvalidAttributeName", "FifoQueue is given when a queue is created, and stays.")

    def changed(was: QueueSettings) -> dict[str, Any]:
        settings, notes = attributes.changes(args.attributes, call.place, fifo=was.fifo, was=was.annotations)
        _check_dead_letter(call, call.queue, settings.get("dead_letter"), was.fifo)
        notes["sqs:LastModifiedTimestamp"] = str(call.known.clock.now_ns() // NS_PER_S)
        return {**settings, "annotations": attributes.annotated(was.annotations, notes)}

    await call.update(changed)


async def tag_queue(call: Call, args: shapes.TagQueue) -> None:
    if not args.tags:
        raise missing("Tags")
    tagged = _tagged(args.tags)

    def changed(was: QueueSettings) -> dict[str, Any]:
        notes = {**was.annotations, **tagged}
        if sum(name.startswith(attributes.TAG_PREFIX) for name in notes) > MOST_TAGS:
            raise SqsError("InvalidParameterValue", f"A queue has at most {MOST_TAGS} tags.")
        return {"annotations": notes}

    await call.update(changed)


async def untag_queue(call: Call, args: shapes.UntagQueue) -> None:
    if not args.tag_keys:
        raise missing("TagKeys")
    gone = {attributes.TAG_PREFIX + key for key in args.tag_keys}

    def changed(was: QueueSettings) -> dict[str, Any]:
        return {"annotations": {name: text for name, text in was.annotations.items() if name not in gone}}

    await call.update(changed)


async def list_queue_tags(call: Call, args: shapes.OfQueue) -> shapes.Tags:
    settings = await call.calls.run(lambda: call.ps.queue(call.queue).settings())
    return shapes.Tags(tags=attributes.tags(settings))


def _tagged(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MOST_TAGS:
        raise SqsError("InvalidParameterValue", f"A queue has at most {MOST_TAGS} tags.")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise invalid("Tags", key, "A key has 1 to 128 characters, and a value up to 256.")
        if not (_TAG.fullmatch(key) and _TAG.fullmatch(value)):
            raise invalid(
                "Tags", key, "Keys and values have letters, digits, white space and _.:/=+-@ alone."
            )
        if key.lower().startswith("aws:") or value.lower().startswith("aws:"):
            raise invalid("Tags", key, "Keys and values that begin with aws: are reserved.")
    return {attributes.TAG_PREFIX + key: value for key, value in tags.items()}
