"""What an SQS client sends, as bytes: the AWS JSON protocol, made before the server is measured."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Generator

from benchmarks.server_load import Script

_RECEIPT = re.compile(rb'"ReceiptHandle": ?"([^"]+)"')
# moto finds out by it which service is meant; the others do not look at it where they are open.
_AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"
)


class Sqs:
    """One queue of a server that speaks SQS."""

    def __init__(self, address: tuple[str, int], queue: str, payload: str) -> None:
        self._address = address
        self._payload = payload
        created = self._post(self._request("CreateQueue", json.dumps({"QueueName": queue}).encode()))
        self.url: str = json.loads(created)["QueueUrl"]

    def _request(self, action: str, body: bytes) -> bytes:
        return (
            f"POST / HTTP/1.1\r\nHost: {self._address[0]}:{self._address[1]}\r\n"
            f"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}\r\n"
            f"Authorization: {_AUTHORIZATION}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def _post(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        url = f"http://{self._address[0]}:{self._address[1]}/"
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers, method="POST"), timeout=30
        ) as answer:
            return bytes(answer.read())

    def sends(self, batch: int) -> Script:
        """Send a batch."""
        request = self._send(batch)

        def script() -> Generator[bytes, bytes, int]:
            _counted((yield request), batch)
            return batch

        return script

    def cycles(self, batch: int) -> Script:
        """Send a batch, receive as many, delete what was received."""
        send = self._send(batch)
        asked = {"QueueUrl": self.url, "MaxNumberOfMessages": batch}
        receive = self._request("ReceiveMessage", json.dumps(asked).encode())

        def script() -> Generator[bytes, bytes, int]:
            _counted((yield send), batch)
            receipts = _RECEIPT.findall((yield receive))
            if receipts:
                yield self._delete(receipts, batch)
            return len(receipts)

        return script

    def _send(self, batch: int) -> bytes:
        if batch == 1:
            body = {"QueueUrl": self.url, "MessageBody": self._payload}
            return self._request("SendMessage", json.dumps(body).encode())
        entries = [{"Id": str(n), "MessageBody": self._payload} for n in range(batch)]
        return self._request(
            "SendMessageBatch", json.dumps({"QueueUrl": self.url, "Entries": entries}).encode()
        )

    def _delete(self, receipts: list[bytes], batch: int) -> bytes:
        url = self.url.encode()
        if batch == 1:
            body = b'{"QueueUrl": "%s", "ReceiptHandle": "%s"}' % (url, receipts[0])
            return self._request("DeleteMessage", body)
        entries = b",".join(b'{"Id": "%d", "ReceiptHandle": "%s"}' % pair for pair in enumerate(receipts))
        return self._request("DeleteMessageBatch", b'{"QueueUrl": "%s", "Entries": [%s]}' % (url, entries))


def _counted(answer: bytes, batch: int) -> None:
    """What was not taken is not counted: a fast refusal is no speed."""
    if answer.count(b'"MessageId"') != batch:
        raise RuntimeError(f"A benchmark must not fail: {answer[:500]!r}")
