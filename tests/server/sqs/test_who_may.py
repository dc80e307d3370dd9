"""Who may do what over SQS: every action by every permission, on its queue and on another; signatures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import botocore.auth
import botocore.session
import pytest
from botocore.exceptions import ClientError

from penstock.server.access import PERMISSIONS, Permission, Principal
from penstock.server.audit import WORLD
from penstock.server.sqs.actions import ACTIONS
from tests.server.sqs.serving import SECRET, Serving, client, serving

ENTRY = {"Id": "a", "ReceiptHandle": "none"}
ARN = "arn:aws:sqs:us-east-1:000000000000:"

#: Actions by the permissions of which any one is enough; `admin` is enough for each.
_BY_PERMISSIONS: dict[tuple[Permission, ...], tuple[str, ...]] = {
    ("enqueue",): ("SendMessage", "SendMessageBatch"),
    ("consume",): (
        "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
        "DeleteMessage",
        "DeleteMessageBatch",
        "ReceiveMessage",
    ),
    ("read",): (
        "GetQueueAttributes",
        "ListDeadLetterSourceQueues",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
    ),
    ("enqueue", "consume", "read"): ("GetQueueUrl",),
    (): (
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "PurgeQueue",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    ),
}
ALLOWED = {name: set(permissions) for permissions, names in _BY_PERMISSIONS.items() for name in names}
#: Of a queue that is not there: who may is told so, or that it was done; who may not is not told.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "AddPermission": {"Label": "a", "AWSAccountIds": ["111122223333"], "Actions": ["*"]},
    "ChangeMessageVisibility": {"ReceiptHandle": "none", "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {"Entries": [{**ENTRY, "VisibilityTimeout": 1}]},
    "DeleteMessage": {"ReceiptHandle": "none"},
    "DeleteMessageBatch": {"Entries": [ENTRY]},
    "RemovePermission": {"Label": "a"},
    "SendMessage": {"MessageBody": "b"},
    "SendMessageBatch": {"Entries": [{"Id": "a", "MessageBody": "b"}]},
    "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
}
DENIED = ("AccessDenied", "AccessDeniedException")


def call(sqs: Any, server: Serving, action: str, queue: str) -> str:
    """What it is answered: a code of SQS, or nothing."""
    arguments = dict(ARGUMENTS.get(action, {}))
    if action in ("CreateQueue", "GetQueueUrl"):
        arguments["QueueName"] = queue
    elif action == "CancelMessageMoveTask":
        from penstock.server.sqs.moves import Task
        from penstock.server.sqs.moving import handle

        arguments["TaskHandle"] = handle(Task("none", 0, 0), ARN + queue)
    elif action in ("StartMessageMoveTask", "ListMessageMoveTasks"):
        arguments["SourceArn"] = ARN + queue
        if action == "StartMessageMoveTask":
            arguments["DestinationArn"] = ARN + queue
    elif action != "ListQueues":
        arguments["QueueUrl"] = f"{server.url}/000000000000/{queue}"
    method = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in action)[1:]
    try:
        answer = getattr(sqs, method)(**arguments)
    except ClientError as error:
        answer = error.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] < 500, answer
    return str(answer.get("Error", {}).get("Code", ""))


class Keys:
    """A key for each permission, on queues of one beginning."""

    required = True

    def by_token(self, token: str) -> Principal | None:
        return None

    def by_certificate(self, name: str) -> Principal | None:
        return None

    def is_good(self, who: Principal) -> bool:
        return True

    def by_access_key(self, access_key: str) -> tuple[Principal, str] | None:
        permission, _, pattern = access_key.partition("/")
        if permission not in PERMISSIONS:
            return None
        return Principal(access_key, {pattern: frozenset((permission,))}), SECRET


@pytest.fixture(scope="module")
def guarded() -> Iterator[Serving]:
    with serving(Keys()) as started:
        yield started


@pytest.fixture(scope="module", params=["json", "query"])
def clients(request: pytest.FixtureRequest, guarded: Serving, query_models: str) -> dict[str, Any]:
    """By permission and pattern."""
    models = query_models if request.param == "query" else None
    names = [f"{permission}/{pattern}" for permission in PERMISSIONS for pattern in ("mine-*", "*")]
    return {name: client(guarded.url, models, access_key=name) for name in names}


def test_the_table_has_every_action_and_says_of_each_what_the_code_says() -> None:
    assert set(ALLOWED) == set(ACTIONS)
    for name, action in ACTIONS.items():
        assert {one for one in action.permissions if one != "admin"} == ALLOWED[name], name


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_an_action_is_allowed_by_its_permissions_on_its_queue_alone(
    clients: dict[str, Any], guarded: Serving, action: str
) -> None:
    for permission in PERMISSIONS:
        some, everywhere = clients[f"{permission}/mine-*"], clients[f"{permission}/*"]
        allowed = permission == "admin" or permission in ALLOWED[action]
        # What concerns no queue of its own takes a key for all of them.
        here = call(some, guarded, action, f"mine-{permission}")
        assert (here not in DENIED) == (allowed and action != "ListQueues"), (permission, here)
        assert call(some, guarded, action, "yours") in DENIED, permission
        anywhere = call(everywhere, guarded, action, f"any-{permission}")
        assert (anywhere not in DENIED) == allowed, (permission, anywhere)
    assert "yours" not in {queue.name for queue in guarded.ps.queues()}


def test_dead_letters_go_only_where_their_key_may_send(clients: dict[str, Any], guarded: Serving) -> None:
    mine, everything = clients["admin/mine-*"], clients["admin/*"]
    everything.create_queue(QueueName="theirs")
    policy = f'{{"deadLetterTargetArn":"{ARN}theirs","maxReceiveCount":1}}'
    with pytest.raises(ClientError) as error:
        mine.create_queue(QueueName="mine-source", Attributes={"RedrivePolicy": policy})
    assert error.value.response["Error"]["Code"] in DENIED
    for destination in ({}, {"DestinationArn": f"{ARN}theirs"}):
        with pytest.raises(ClientError) as error:
            mine.start_message_move_task(SourceArn=f"{ARN}mine-dead", **destination)
        assert error.value.response["Error"]["Code"] in DENIED


def test_administration_is_written_down_and_nothing_else_is(
    clients: dict[str, Any], guarded: Serving
) -> None:
    sqs = clients["admin/*"]
    url = sqs.create_queue(QueueName="audited")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="b")
    sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    assert call(clients["read/*"], guarded, "DeleteQueue", "audited") in DENIED
    sqs.delete_queue(QueueUrl=url)
    entries = guarded.ps.journal(WORLD).scan(labels=["queue:audited", "principal:admin/*"])
    assert [entry.kind for entry in entries][-2:] == ["CreateQueue", "DeleteQueue"]
    assert {entry.kind for entry in guarded.ps.journal(WORLD).scan()} <= {*_BY_PERMISSIONS[()]}


def test_who_has_no_key_or_another_secret_is_refused(guarded: Serving) -> None:
    wrong = client(guarded.url, access_key="admin/*", secret="another-altogether")
    unknown = client(guarded.url, access_key="NOBODY")
    unsigned = client(guarded.url, signature_version=botocore.UNSIGNED)
    for action in ACTIONS:
        assert call(wrong, guarded, action, "mine") == "SignatureDoesNotMatch", action
        assert call(unknown, guarded, action, "mine") == "InvalidClientTokenId", action
        assert call(unsigned, guarded, action, "mine") == "MissingAuthenticationToken", action


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_signature_of_another_time_is_refused_for_every_action(guarded: Serving, minutes: int) -> None:
    sqs = client(guarded.url, access_key="admin/*")
    then = datetime.now(UTC) + timedelta(minutes=minutes)
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=then):
        for action in ACTIONS:
            assert call(sqs, guarded, action, "mine") == "SignatureDoesNotMatch", action


def test_a_signature_is_good_for_its_own_request_alone(guarded: Serving) -> None:
    seen: list[Any] = []
    sqs = client(guarded.url, access_key="read/*")
    sqs.meta.events.register("before-send.sqs.ListQueues", lambda request, **more: seen.append(request))
    sqs.list_queues()

    def replay(request: Any, **more: Any) -> None:
        for name in ("Authorization", "X-Amz-Date"):
            request.headers[name] = seen[0].headers[name]

    other = client(guarded.url, access_key="read/*")
    other.meta.events.register("before-send.sqs", replay)
    for action in ACTIONS:
        expected = "" if action == "ListQueues" else "SignatureDoesNotMatch"
        assert call(other, guarded, action, "mine") == expected, action


def test_a_request_that_was_seen_is_good_for_a_quarter_of_an_hour() -> None:
    seen: list[Any] = []
    with serving(Keys()) as server:
        sqs = client(server.url, access_key="admin/*")
        sqs.meta.events.register("before-send.sqs", lambda request, **more: seen.append(request))
        sqs.create_queue(QueueName="q")
        [signed] = seen
        again = Request(signed.url, signed.body, dict(signed.headers.items()), method="POST")
        server.clock.advance(14 * 60)
        with urlopen(again, timeout=20) as answer:
            assert answer.status == 200
        server.clock.advance(2 * 60)
        with pytest.raises(HTTPError) as error:
            urlopen(again, timeout=20)
        assert error.value.code == 403
        assert b"SignatureDoesNotMatch" in error.value.read()


def test_a_presigned_url_is_good_by_itself_until_it_expires_and_for_nothing_else(query_models: str) -> None:
    def answered(url: str) -> tuple[int, bytes]:
        try:
            with urlopen(url, timeout=20) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    with serving(Keys()) as server:
        sqs = client(server.url, query_models, access_key="admin/*")
        parameters = {"QueueName": "presigned", "Attributes": {"VisibilityTimeout": "7"}}
        url = sqs.generate_presigned_url("create_queue", parameters, ExpiresIn=60, HttpMethod="GET")
        status, body = answered(url)
        assert (status, b"/000000000000/presigned</QueueUrl>" in body) == (200, True)
        for changed in (url.replace("QueueName=presigned", "QueueName=another"), url + "&Action=DeleteQueue"):
            assert changed != url
            status, body = answered(changed)
            assert (status, b"SignatureDoesNotMatch" in body) == (403, True)
        server.clock.advance(600)
        status, body = answered(url)
        assert (status, b"Signature expired" in body) == (403, True)
        assert [queue.name for queue in server.ps.queues()] == ["presigned"]


@pytest.mark.parametrize("said", ["UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"])
def test_a_body_that_is_not_signed_is_refused_though_everything_else_is(guarded: Serving, said: str) -> None:
    sqs = client(guarded.url, access_key="admin/*")

    def unsigned(request: Any, **more: Any) -> None:
        request.headers["X-Amz-Content-SHA256"] = said  # The signer takes it for the sum of the body.

    sqs.meta.events.register("before-sign.sqs.CreateQueue", unsigned)
    assert call(sqs, guarded, "CreateQueue", "unsigned") == "SignatureDoesNotMatch"
    assert "unsigned" not in {queue.name for queue in guarded.ps.queues()}


@pytest.mark.parametrize("protocol", ["json", "query"])
def test_a_client_whose_sdk_signs_no_content_type_is_let_in(
    guarded: Serving, query_models: str, protocol: str
) -> None:
    """As those of PHP and of JavaScript before version 3."""
    sqs = client(guarded.url, query_models if protocol == "query" else None, access_key="admin/*")
    kinds: list[str] = []

    def take_off(request: Any, **more: Any) -> None:
        kinds.append(request.headers["Content-Type"])
        del request.headers["Content-Type"]

    def put_on(request: Any, **more: Any) -> None:
        assert b"content-type" not in request.headers["Authorization"]
        request.headers["Content-Type"] = kinds[-1]

    sqs.meta.events.register("before-sign.sqs", take_off)
    sqs.meta.events.register("before-send.sqs", put_on)
    assert call(sqs, guarded, "CreateQueue", f"untyped-{protocol}") == ""
    assert len(kinds) == 1


def test_a_session_token_proves_nothing(guarded: Serving) -> None:
    session = botocore.session.Session()
    sqs = session.create_client(
        "sqs",
        endpoint_url=guarded.url,
        region_name="us-east-1",
        aws_access_key_id="admin/*",
        aws_secret_access_key=SECRET,
        aws_session_token="anything",
    )
    assert call(sqs, guarded, "CreateQueue", "temporary") == "InvalidClientTokenId"
