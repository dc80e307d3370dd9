"""AWS's own client for Python, in a process of its own, against a server in another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.redis.certificates import Authority
from tests.server.sqs.query_model import written

TIMEOUT_S = 60

#: What every script begins with: a client and a resource of the server whose URL is the first argument.
_BEGINNING = """
import sys
import boto3
from botocore.exceptions import ClientError

where = dict(endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="AKIDEXAMPLE",
             aws_secret_access_key="a-secret-of-enough-letters")
sqs = boto3.client("sqs", **where)
resource = boto3.resource("sqs", **where)
"""

STANDARD = """
attributes = {"VisibilityTimeout": "60"}
url = sqs.create_queue(QueueName="orders", Attributes=attributes, tags={"team": "a"})["QueueUrl"]
assert url == sys.argv[1] + "/000000000000/orders", url
assert sqs.get_queue_url(QueueName="orders")["QueueUrl"] == url
assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a"}
sent = sqs.send_message(
    QueueUrl=url, MessageBody="a\\r\\n<b>&é",
    MessageAttributes={
        "n": {"DataType": "Number", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\\0\\xff"}})
[got] = sqs.receive_message(QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"],
                            WaitTimeSeconds=1)["Messages"]
assert got["MessageId"] == sent["MessageId"] and got["Body"] == "a\\r\\n<b>&é", got
assert got["MessageAttributes"]["raw"] == {"DataType": "Binary", "BinaryValue": b"\\0\\xff"}, got
assert got["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "7"}, got
assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
assert got["Attributes"]["ApproximateReceiveCount"] == "1"
counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
assert counts["ApproximateNumberOfMessagesNotVisible"] == "1" and counts["VisibilityTimeout"] == "60", counts
sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
[again] = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
assert again["Attributes"]["ApproximateReceiveCount"] == "2"
sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
assert "Messages" not in sqs.receive_message(QueueUrl=url)

queue = resource.get_queue_by_name(QueueName="orders")
answer = queue.send_messages(Entries=[{"Id": str(i), "MessageBody": f"m{i}"} for i in range(10)])
assert len(answer["Successful"]) == 10 and "Failed" not in answer, answer
messages = queue.receive_messages(MaxNumberOfMessages=10)
assert sorted(message.body for message in messages) == sorted(f"m{i}" for i in range(10))
done = queue.delete_messages(
    Entries=[{"Id": m.message_id, "ReceiptHandle": m.receipt_handle} for m in messages])
assert len(done["Successful"]) == 10, done
assert [q.url for q in resource.queues.filter(QueueNamePrefix="ord")] == [url]
queue.delete()
try:
    sqs.get_queue_url(QueueName="orders")
except sqs.exceptions.QueueDoesNotExist as error:
    assert error.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue", error.response
else:
    raise AssertionError("it is still there")
"""

FIFO = """
attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
url = sqs.create_queue(QueueName="o.fifo", Attributes=attributes)["QueueUrl"]
first = sqs.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g")
twice = sqs.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g")
assert first["MessageId"] == twice["MessageId"] and first["SequenceNumber"] == twice["SequenceNumber"]
second = sqs.send_message(QueueUrl=url, MessageBody="2", MessageGroupId="g", MessageDeduplicationId="mine")
assert int(second["SequenceNumber"]) > int(first["SequenceNumber"])
for body in ("1", "2"):
    [got] = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert got["Body"] == body and got["Attributes"]["MessageGroupId"] == "g", got
    assert "Messages" not in sqs.receive_message(QueueUrl=url)  # The group waits for it.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
assert got["Attributes"]["MessageDeduplicationId"] == "mine"
"""

#: Before a script: its client and its resource show a certificate.
CERTIFIED = """
import os
from botocore.config import Config

where["config"] = Config(client_cert=(os.environ["CERTIFICATE"], os.environ["CERTIFICATE_KEY"]))
assert sys.argv[1].startswith("https://")
try:
    sqs.list_queues()
except Exception as error:
    assert not isinstance(error, ClientError), error  # It ends before it is a request.
else:
    raise AssertionError("without a certificate")
sqs = boto3.client("sqs", **where)
resource = boto3.resource("sqs", **where)
"""

DENIED = """
for call, code in (
    (lambda: sqs.create_queue(QueueName="mine"), "AccessDenied"),
    (lambda: boto3.client("sqs", **{**where, "aws_secret_access_key": "another-altogether"}).list_queues(),
     "SignatureDoesNotMatch"),
    (lambda: boto3.client("sqs", **{**where, "aws_access_key_id": "NOBODY"}).list_queues(),
     "InvalidClientTokenId"),
):
    try:
        call()
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error.response
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 403, error.response
    else:
        raise AssertionError(code)
url = sqs.get_queue_url(QueueName="shared")["QueueUrl"]
sqs.send_message(QueueUrl=url, MessageBody="signed")
"""


class Server:
    """`penstock serve` on a store of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        with penstock.open(folder / "data") as ps:
            ps.create_queue("shared")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "penstock",
                "--store",
                str(folder / "data"),
                "--json",
                "serve",
                "--port",
                "0",
                "--log",
                "off",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url: str = json.loads(self._process.stdout.readline())["url"]

    def runs(self, script: str, **environ: str) -> None:
        found = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _BEGINNING + script, self.url],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert found.returncode == 0, found.stderr

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            assert self._process.wait(TIMEOUT_S) == 0
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("open"))
    yield started
    started.stop()


def test_a_standard_queue_serves_client_and_resource(server: Server) -> None:
    server.runs(STANDARD)


def test_so_it_does_in_the_older_query_protocol(server: Server, tmp_path: Path) -> None:
    is_query = "assert sqs.meta.service_model.protocol == 'query'"
    server.runs(f"{is_query}\n{STANDARD}", AWS_DATA_PATH=str(written(tmp_path)))


def test_a_fifo_queue_keeps_order_and_leaves_out_duplicates(server: Server) -> None:
    server.runs(FIFO)


def test_over_tls_with_a_certificate_of_the_client_it_is_the_same(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    crt, key = authority.issue("server", "127.0.0.1")
    mine = dict(zip(("CERTIFICATE", "CERTIFICATE_KEY"), map(str, authority.issue("client")), strict=True))
    tls = ("--tls-certificate", str(crt), "--tls-key", str(key), "--tls-client-ca", str(authority.path))
    started = Server(tmp_path, *tls)
    try:
        started.runs(CERTIFIED + STANDARD, AWS_CA_BUNDLE=str(authority.path), AWS_MAX_ATTEMPTS="1", **mine)
    finally:
        started.stop()


def test_signed_requests_are_let_in_and_others_are_not(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    entry = {
        "aws_access_key": "AKIDEXAMPLE",
        "aws_secret": "a-secret-of-enough-letters",
        "grants": {"shared": ["enqueue"]},
    }
    keys.write_text(json.dumps({"keys": {"producer": entry}}))
    keys.chmod(0o600)
    started = Server(tmp_path, "--credentials", str(keys))
    try:
        started.runs(DENIED)
    finally:
        started.stop()
