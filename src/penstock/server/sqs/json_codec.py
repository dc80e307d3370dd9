"""AWS's JSON protocol: the action in a header, arguments and answers as JSON."""

from __future__ import annotations

import msgspec

from penstock.server.endpoint import Request, Response
from penstock.server.sqs.checks import missing
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.shapes import Shape

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "AmazonSQS."
_MISSING = "missing required field `"


def action_of(request: Request) -> str:
    return request.headers["x-amz-target"].removeprefix(TARGET)


def arguments(request: Request, action: str, kind: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error) from None


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
