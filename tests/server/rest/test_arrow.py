"""Messages go in, and events come out, as streams of Arrow."""

from __future__ import annotations

import io
from typing import Any

import pyarrow
import pytest

from penstock.backends.http.wire import ARROW
from penstock.server.rest.shapes import MOST
from penstock.tables import arrow_schema
from tests.server.rest.api import Api, Told

pa: Any = pyarrow


def stream(table: Any, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def send(rest: Api, q: str, body: bytes, verb: str = "POST", **headers: str) -> Told:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return rest.raw(verb, f"/v1{q}/messages", body, {"content-type": ARROW, **named})


def length(rest: Api, q: str) -> int:
    return int(rest.ok("GET", f"{q}/length")["length"])


def test_rows_are_messages_each_with_a_result(rest: Api, q: str) -> None:
    headers = pa.array([[("type", "a")], None, None], pa.map_(pa.string(), pa.string()))
    columns = {"payload": [b"\xff", b"two", b"three"], "priority": [9, None, 99], "headers": headers}
    told = send(rest, q, stream(pa.table(columns)))
    assert (told.status, told.headers["content-type"]) == (200, "application/json")
    assert [one["ok"] for one in told.value["results"]] == [True, True, False]
    first, second = rest.ps.queue(q.rpartition("/")[2]).lease(5)
    assert (first.payload, first.priority, first.headers) == (b"\xff", 9, {"type": "a"})
    assert (second.payload, second.priority) == (b"two", 4)


def test_rows_that_come_again_under_a_key_are_stored_once(rest: Api, q: str) -> None:
    body = stream(pa.table({"payload": [b"a", b"b"]}))
    first = send(rest, q, body, idempotency_key=f"arrow {q}".replace(" ", "-"))
    again = send(rest, q, body, idempotency_key=f"arrow {q}".replace(" ", "-"))
    assert (again.status, again.value, length(rest, q)) == (200, first.value, 2)


def test_rows_replace_messages_of_their_ids(rest: Api, q: str) -> None:
    made = send(rest, q, stream(pa.table({"payload": [b"a"]}))).value["results"][0]["id"]
    assert send(rest, q, stream(pa.table({"payload": [b"new"], "id": [made]})), "PUT").status == 200
    assert rest.ok("GET", f"{q}/messages/{made}?view=text")["payload_text"] == "new"


PLAIN = stream(pa.table({"payload": [b"a"]}))
COMPRESSED = stream(pa.table({"payload": [b"a" * 1000]}), options=pa.ipc.IpcWriteOptions(compression="zstd"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        PLAIN[:100],
        PLAIN[:-40] + b"\xff" * 40,
        COMPRESSED,
        stream(pa.table({"payload": [b"a", None]})),
        stream(pa.table({"text": ["a"]})),
        stream(pa.table({"payload": [b"a"], "surplus": [1]})),
        stream(pa.table({"payload": [b"a"], "queue": ["other"]})),
        stream(pa.table({"payload": [b"a"], "weight": ["heavy"]})),
        stream(pa.table({"payload": pa.array([b"a"]).dictionary_encode()})),
        stream(pa.table({"payload": [b""] * (MOST + 1)})),
    ],
)
def test_what_is_no_stream_of_messages_is_refused_and_stores_nothing(rest: Api, q: str, body: bytes) -> None:
    told = send(rest, q, body)
    assert (told.status, told.value["error"]) == (400, "InvalidMessage")
    assert length(rest, q) == 0


def test_events_are_rows_of_the_table_events(rest: Api, q: str) -> None:
    send(rest, q, stream(pa.table({"payload": [b"a", b"b"], "delay_s": [0.0, 60.0]})))
    rest.ok("PUT", f"{q}/cursors/c", {})
    shown = rest.ok("GET", f"{q}/events")["events"]
    for path in (f"{q}/events", f"{q}/cursors/c/events"):
        told = rest.raw("GET", f"/v1{path}", headers={"accept": ARROW})
        assert (told.status, told.headers["content-type"]) == (200, ARROW)
        table = pa.ipc.open_stream(told.body).read_all()
        assert table.schema.equals(arrow_schema("events"))
        rows = table.to_pylist()
        assert [{name: row[name] for name in shown[0]} for row in rows] == shown
        assert {row["queue"] for row in rows} == {q.rpartition("/")[2]}
    none = rest.raw("GET", f"/v1{q}/events?after=99", headers={"accept": ARROW})
    assert pa.ipc.open_stream(none.body).read_all().num_rows == 0


def test_errors_are_in_json_and_nothing_else_is_given_as_arrow(rest: Api, q: str) -> None:
    assert rest.raw("GET", f"/v1{q}/stats", headers={"accept": ARROW}).status == 406
    missing = rest.raw("GET", "/v1/queues/nowhere/events", headers={"accept": ARROW})
    assert (missing.status, missing.value["error"]) == (404, "QueueNotFound")
    assert rest.raw("POST", f"/v1{q}/lease", PLAIN, {"content-type": ARROW}).status == 415
