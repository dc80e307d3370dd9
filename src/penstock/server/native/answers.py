"""Errors as answers of the native interface: MessagePack, and a status by their kind."""

from __future__ import annotations

from penstock.codec.answer import encode_answer
from penstock.errors import PenstockError
from penstock.server.endpoint import Response
from penstock.server.statuses import status_of

CONTENT_TYPE = "application/msgpack"


def failed(error: PenstockError, status: int | None = None) -> Response:
    try:
        body = encode_answer(error)
    except Exception:  # noqa: BLE001  (whatever is in it)
        body = encode_answer(PenstockError(f"{type(error).__name__}, which cannot be sent"))
    return Response(status or status_of(error), body, CONTENT_TYPE)
