"""What the tables of errors say, against AWS's own model of the service; and the sums of known messages."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import botocore
import pytest

from penstock.server.sqs import digests
from penstock.server.sqs.errors import CODES, COMMON, SqsError


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    path = Path(botocore.__file__).parent / "data/sqs/2012-11-05/service-2.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def test_every_error_of_the_service_is_known_and_no_other(model: dict[str, Any]) -> None:
    errors = {name for name, shape in model["shapes"].items() if shape.get("exception")}
    assert set(CODES) == errors


def test_an_error_has_its_name_its_older_code_and_its_status() -> None:
    error = SqsError("QueueDoesNotExist", "no such queue")
    assert error.type == "com.amazonaws.sqs#QueueDoesNotExist"
    assert (error.code, error.status) == ("AWS.SimpleQueueService.NonExistentQueue", 400)
    denied = SqsError("AccessDenied", "no")
    assert denied.type == "com.amazon.coral.service#AccessDeniedException"
    assert (denied.code, denied.status, denied.by_sender) == ("AccessDenied", 403, True)
    assert [code for code, (_, status) in COMMON.items() if status >= 500] == [
        "InternalError",
        "ServiceUnavailable",
    ]


def test_an_error_that_sqs_does_not_have_cannot_be_told() -> None:
    with pytest.raises(KeyError):
        SqsError("Invented", "")


def test_the_sum_of_a_body_is_that_of_its_bytes() -> None:
    assert digests.of_body(b"") == "d41d8cd98f00b204e9800998ecf8427e"


def test_the_sum_of_attributes_is_the_one_that_moto_computes() -> None:
    from moto.sqs.models import Message

    sent = {
        "b": {"DataType": "Binary.png", "BinaryValue": b"\0\1\2\xff"},
        "a": {"DataType": "String", "StringValue": "tëxt"},
        "C": {"DataType": "Number.int", "StringValue": "-1"},
    }
    ours: list[digests.Attribute] = [
        ("b", "Binary.png", b"\0\1\2\xff"),
        ("a", "String", "tëxt"),
        ("C", "Number.int", "-1"),
    ]
    theirs = Message("id", "body", system_attributes={})
    theirs.message_attributes = sent
    assert digests.of_attributes(ours) == theirs.attribute_md5
