"""The `aws` command as it is installed, signing its requests, against a server in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import Cli
from tests.redis.servers import wait_until
from tests.server.clients.served import environment, signed_server
from tests.server.processes import TIMEOUT_S, Served, serving

AWS = str(Path(sys.executable).parent / "aws")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with signed_server(tmp_path_factory.mktemp("aws")) as started:
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.errors


def aws(server: Served, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [AWS, "--endpoint-url", server.url, "sqs", *arguments],
        env=environment(AWS_MAX_ATTEMPTS="1", **environ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def done(server: Served, *arguments: str) -> Any:
    """What the command printed; empty where it has nothing to say."""
    found = aws(server, *arguments)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout or "{}")


def test_a_message_goes_from_a_new_queue_through_a_receive_to_its_deletion(server: Served) -> None:
    made = done(
        server,
        *("create-queue", "--queue-name", "orders", "--tags", "team=a"),
        *("--attributes", "VisibilityTimeout=60"),
    )
    at = ("--queue-url", made["QueueUrl"])
    assert made["QueueUrl"] == f"{server.url}/000000000000/orders"
    sent = done(
        server,
        *("send-message", *at, "--message-body", "größer <&> als"),
        *("--message-attributes", '{"n": {"DataType": "Number", "StringValue": "7"}}'),
    )
    received = done(
        server,
        *("receive-message", *at, "--wait-time-seconds", "1"),
        *("--attribute-names", "All", "--message-attribute-names", "All"),
    )
    [got] = received["Messages"]
    assert (got["MessageId"], got["Body"]) == (sent["MessageId"], "größer <&> als")
    assert (got["MD5OfBody"], got["MD5OfMessageAttributes"]) == (
        sent["MD5OfMessageBody"],
        sent["MD5OfMessageAttributes"],
    )
    assert got["MessageAttributes"] == {"n": {"DataType": "Number", "StringValue": "7"}}
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"
    assert done(server, "delete-message", *at, "--receipt-handle", got["ReceiptHandle"]) == {}
    shown = done(server, "get-queue-attributes", *at, "--attribute-names", "All")["Attributes"]
    counts = [shown[f"ApproximateNumberOfMessages{of}"] for of in ("", "NotVisible", "Delayed")]
    assert (counts, shown["VisibilityTimeout"]) == (["0", "0", "0"], "60")
    assert done(server, "list-queue-tags", *at) == {"Tags": {"team": "a"}}


def test_a_batch_into_a_fifo_queue_leaves_out_what_is_twice_and_a_purge_empties_it(server: Served) -> None:
    attributes = "FifoQueue=true,ContentBasedDeduplication=true"
    url = done(server, "create-queue", "--queue-name", "o.fifo", "--attributes", attributes)["QueueUrl"]
    bodies = ["1", "2", "1", "3"]
    entries = [{"Id": f"e{at}", "MessageBody": body, "MessageGroupId": "g"} for at, body in enumerate(bodies)]
    answer = done(server, "send-message-batch", "--queue-url", url, "--entries", json.dumps(entries))
    assert "Failed" not in answer
    by_entry = {one["Id"]: one for one in answer["Successful"]}
    assert by_entry["e0"]["MessageId"] == by_entry["e2"]["MessageId"]
    numbers = [int(by_entry[name]["SequenceNumber"]) for name in ("e0", "e1", "e3")]
    assert numbers == sorted(set(numbers))
    received = done(server, "receive-message", "--queue-url", url, "--max-number-of-messages", "10")
    # One of a group at a time, however many are asked for.
    assert [one["Body"] for one in received["Messages"]] == ["1"]
    assert url in done(server, "list-queues", "--queue-name-prefix", "o")["QueueUrls"]
    assert done(server, "purge-queue", "--queue-url", url) == {}
    left = done(server, "get-queue-attributes", "--queue-url", url, "--attribute-names", "All")
    assert left["Attributes"]["ApproximateNumberOfMessages"] == "0"


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (("get-queue-url", "--queue-name", "nowhere"), {}, "NonExistentQueue"),
        (("list-queues",), {"AWS_SECRET_ACCESS_KEY": "another-secret-altogether"}, "SignatureDoesNotMatch"),
    ],
    ids=["a queue that is not there", "another secret"],
)
def test_a_refusal_is_shown_as_the_error_that_it_is(
    server: Served, arguments: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    found = aws(server, *arguments, **environ)
    assert found.returncode in (254, 255), found.stdout
    assert said in found.stderr


def test_a_pair_that_keys_create_has_made_is_let_in_until_it_is_revoked(tmp_path: Path) -> None:
    """By nothing but commands: what is printed is what the client needs."""
    file = str(tmp_path / "keys.yaml")
    cli = Cli(tmp_path)
    made = cli("keys", "create", "shop", "--grant", "orders=admin", "--aws", "--file", file).out
    pair = dict(line.split("=") for line in made.splitlines() if line.startswith("AWS_"))
    assert set(pair) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    arguments = ("create-queue", "--queue-name", "orders")
    with serving(tmp_path, "--credentials", file, "--log", "off") as server:
        assert aws(server, *arguments).returncode != 0
        found = aws(server, *arguments, **pair)
        assert found.returncode == 0, found.stderr
        denied = aws(server, "create-queue", "--queue-name", "other", **pair)
        assert "AccessDenied" in denied.stderr
        cli("keys", "revoke", "shop", "--file", file)
        assert wait_until(lambda: "InvalidClientTokenId" in aws(server, *arguments, **pair).stderr, TIMEOUT_S)
        assert server.stop() == 0
