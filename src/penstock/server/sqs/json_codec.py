"""AWS's JSON protocol: the action in a header, arguments and answers as JSON."""

from __future__ import annotations

from functools import cache

import msgspec

from penstock.server.endpoint import Request, Response
from penstock.server.sqs.checks import missing
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.shapes import Shape

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "AmazonSQS."
_MISSING = "missing required field `"


def is_target(target: str) -> bool:
    """Whether it names an action of this service, or would if there were one."""
    return target.startswith(TARGET)


def action_of(request: Request) -> str:
    """Empty if it is of another service."""
    target = request.headers["x-amz-target"]
    return target.removeprefix(TARGET) if is_target(target) else ""


def arguments(request: Request, action: str, kind: type[Shape]) -> Shape:
    try:
        return _decoder(kind).decode(request.body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error) from None


@cache
def _decoder(kind: type[Shape]) -> msgspec.json.Decoder[Shape]:
    return msgspec.json.Decoder(kind)


def refusal(error: Exception) -> SqsError:
    """What msgspec says of arguments that are not those of the action."""
    _, found, rest = str(error).partition(_MISSING)
    if found:
        return missing(rest.partition("`")[0])
    if isinstance(error, msgspec.ValidationError):
        return SqsError("MalformedInput", f"An argument is not what it should be: {error!s:.200}")
    return SqsError("MalformedInput", "The request is not well-formed.")


def answered(request_id: str, action: str, answer: Shape | None) -> Response:
    body = b"" if answer is None else msgspec.json.encode(answer)
    return Response(200, body, CONTENT_TYPE, _headers(request_id))


def failed(request_id: str, status: int, kind: str, code: str, by_sender: bool, message: str) -> Response:
    """`kind` is the error in this protocol, `code` in the older one, which clients look at as well."""
    body = msgspec.json.encode({"__type": kind, "message": message})
    fault = "Sender" if by_sender else "Receiver"
    headers = [*_headers(request_id), ("x-amzn-query-error", f"{code};{fault}")]
    return Response(status, body, CONTENT_TYPE, headers)


def _headers(request_id: str) -> list[tuple[str, str]]:
    return [("x-amzn-requestid", request_id)]
