"""Calls over HTTP: made once though made again, only by who may, and never longer than the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
import urllib3

import penstock
from penstock import BackendUnavailable, NewMessage, StorageError
from penstock.backends.forwarding.methods import METHODS, decode_error, encoded
from penstock.backends.http import peer as client
from penstock.backends.http.place import read
from penstock.config import BackendSettings
from penstock.errors import InvalidConfig, Unauthorized, Unsupported
from penstock.message import EnqueueResult
from penstock.queue import Queue
from penstock.server import here
from penstock.server.access import PERMISSIONS, Permission, Principal
from penstock.server.endpoint import CallId, Response
from penstock.server.native import permissions
from penstock.server.native.once import Once
from penstock.server_config import Limits
from penstock.testing.background import Background, wait_until
from tests.http.running import Running

CALLER = "ab" * 16


class Keys:
    """Credentials that a test makes up: the token is the principal's name."""

    required = True

    def __init__(self, **grants: dict[str, tuple[Permission, ...]]) -> None:
        self._known = {
            name: Principal(name, {queue: frozenset(may) for queue, may in given.items()})
            for name, given in grants.items()
        }

    def by_token(self, token: str) -> Principal | None:
        return self._known.get(token)

    def by_access_key(self, access_key: str) -> None:
        return None

    def by_certificate(self, name: str) -> None:
        return None

    def is_good(self, who: Principal) -> bool:
        return True


@pytest.fixture
def store() -> Iterator[penstock.Penstock]:
    with penstock.open("memory:") as ps:
        yield ps


@pytest.fixture
def server(store: penstock.Penstock) -> Iterator[Running]:
    running = Running(store)
    yield running
    running.stop()


def post(server: Running, method: str, *args: object, token: str = "", **headers: str) -> tuple[int, bytes]:
    """One request, as any client may send it."""
    return send(server, method, encoded(method, args, {}), token, headers)


def send(
    server: Running, method: str, body: bytes, token: str = "", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    sent = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
    sent["connection"] = "close"
    if token:
        sent["authorization"] = f"Bearer {token}"
    answer = urllib3.request("POST", f"{server.url}/v1/call/{method}", body=body, headers=sent, retries=False)
    return answer.status, answer.data


# -- once


def test_a_call_that_comes_again_happens_once_and_is_answered_each_time(
    store: penstock.Penstock, server: Running
) -> None:
    store.create_queue("q")
    asked = [post(server, "enqueue", "q", [NewMessage(b"x")], penstock_call=f"{CALLER}/1") for _ in range(3)]
    assert [status for status, _ in asked] == [200] * 3
    assert len({body for _, body in asked}) == 1
    assert store.queue("q").length() == 1
    post(server, "enqueue", "q", [NewMessage(b"x")], penstock_call=f"{CALLER}/2")
    assert store.queue("q").length() == 2


def test_a_lease_whose_answer_was_lost_is_answered_with_the_same_messages(
    store: penstock.Penstock, server: Running
) -> None:
    store.create_queue("q").enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    asked = {post(server, "lease", "q", 1, None, 0, "", penstock_call=f"{CALLER}/1") for _ in range(2)}
    assert len(asked) == 1
    assert store.queue("q").stats().leased == 1


def test_a_call_that_comes_again_after_the_server_was_started_anew_happened_once(tmp_path: Path) -> None:
    bodies = []
    for _ in range(2):
        with penstock.open(tmp_path / "store") as ps:
            if not ps.queues():
                ps.create_queue("q")
            server = Running(ps)
            bodies.append(post(server, "enqueue", "q", [NewMessage(b"x")], penstock_call=f"{CALLER}/7"))
            server.stop()
            assert ps.queue("q").length() == 1
    assert bodies[0] == bodies[1]


def test_calls_of_many_clients_that_arrive_together_are_one_call_of_the_store(
    store: penstock.Penstock, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_queue("q")
    counts: list[int] = []
    real, goes_on = Queue.enqueue_many, threading.Event()

    def counted(self: Queue, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        counts.append(len(messages))
        assert goes_on.wait(10)
        return real(self, messages)

    monkeypatch.setattr(Queue, "enqueue_many", counted)
    monkeypatch.setattr(here, "MOST_TOGETHER", 0)  # What waits in a call of the store waits in a thread.

    def client(n: int) -> None:
        # The first call of a caller may have happened before the server was started: it stands alone.
        caller = f"{n:032x}"
        for number in (1, 2):
            messages = [NewMessage(b"x")] * (number - 1)
            assert post(server, "enqueue", "q", messages, penstock_call=f"{caller}/{number}")[0] == 200

    clients = [Background(partial(client, n)) for n in range(6)]
    wait_until(lambda: server.calls.running == 6 and bool(counts))
    goes_on.set()
    for one in clients:
        one.result()
    assert sum(counts) == 6
    assert len(counts) < 6
    assert store.queue("q").length() == 6


def test_an_answer_is_not_for_another_who_names_the_same_caller(store: penstock.Penstock) -> None:
    store.create_queue("q")
    server = Running(store, credentials=Keys(a={"*": ("admin",)}, b={"*": ("admin",)}))
    try:
        first, second = (
            post(server, "enqueue", "q", [NewMessage(b"x")], token=token, penstock_call=f"{CALLER}/1")[1]
            for token in "ab"
        )
    finally:
        server.stop()
    assert first != second
    assert store.queue("q").length() == 2


def test_a_number_that_is_over_is_refused(store: penstock.Penstock, server: Running) -> None:
    store.create_queue("q")
    post(server, "purge", "q", ["ready"], penstock_call=f"{CALLER}/5")
    assert post(server, "purge", "q", ["ready"], penstock_call=f"{CALLER}/4")[0] == 400
    assert post(server, "purge", "q", ["ready"], penstock_call="nonsense")[0] == 400


def test_a_call_that_failed_in_a_way_that_nobody_foresaw_is_tried_anew() -> None:
    tries: list[bool] = []

    async def make(listening: Callable[[], bool], again: bool) -> Response:
        tries.append(again)
        if len(tries) == 1:
            raise ValueError("unforeseen")
        return Response(200, b"done")

    async def story() -> None:
        once, call = Once(forget=lambda callers: asyncio.sleep(0)), CallId(b"caller", 1)
        with pytest.raises(ValueError, match="unforeseen"):
            await once(call, "purge", lambda: True, make)
        for _ in range(2):
            assert (await once(call, "purge", lambda: True, make)).body == b"done"

    asyncio.run(story())
    assert tries == [True, True]


def test_calls_go_on_when_the_server_comes_back(store: penstock.Penstock) -> None:
    server = Running(store)
    with penstock.open(server.url) as ps:
        q = ps.create_queue("q")
        server.stop()
        sending = Background(lambda: q.enqueue(b"x"))
        server = Running(store, port=server.port)
        sending.result()
        assert q.length() == 1
    server.stop()


def test_a_server_that_is_not_there_is_told_at_once(server: Running) -> None:
    server.stop()
    with pytest.raises(BackendUnavailable, match="does not answer info"):
        penstock.open(server.url)


@pytest.mark.parametrize("wanted_s", [None, 1.0])
def test_clients_that_lost_their_server_together_do_not_come_back_together(wanted_s: float | None) -> None:
    patiences = [client.Patience(15) for _ in range(20)]
    for longest_s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0) if wanted_s is None else (2.0,):
        pauses = [one.pause_s(wanted_s) or 0 for one in patiences]
        assert len(set(pauses)) > 10
        assert longest_s / 2 <= min(pauses) < max(pauses) <= longest_s
        assert wanted_s is None or min(pauses) >= wanted_s


def test_a_call_gives_up_after_a_while(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.1)
    with penstock.open(server.url) as ps:
        server.stop()
        with pytest.raises(BackendUnavailable, match="does not answer queues"):
            ps.queues()


# -- waiting


def test_a_poll_in_the_servers_line_is_answered_when_something_comes(server: Running) -> None:
    with penstock.open(server.url) as ps:
        q = ps.create_queue("q")
        waiting = Background(lambda: q.lease(wait_s=30))
        wait_until(lambda: server.calls.polls.waiting == 1)
        q.enqueue(b"here")
        assert [delivery.payload for delivery in waiting.result()] == [b"here"]


@pytest.mark.parametrize("wait_s", [90_000.0, 3e8])
def test_however_long_somebody_waits_it_takes_no_thread(store: penstock.Penstock, wait_s: float) -> None:
    store.create_queue("q")
    server = Running(store, limits=Limits(threads=1))
    try:
        waiting = Background(lambda: post(server, "lease", "q", 1, None, wait_s, ""))
        wait_until(lambda: server.calls.polls.waiting == 1)
        assert post(server, "stats", "q")[0] == 200
    finally:
        server.stop()
    assert waiting.result()[0] == 200


@pytest.mark.parametrize("wait_s", [4e8, float("inf"), float("nan"), -1, "long"])
def test_what_is_no_time_to_wait_is_refused_at_once(
    store: penstock.Penstock, server: Running, wait_s: object
) -> None:
    store.create_queue("q")
    assert post(server, "lease", "q", 1, None, wait_s, "")[0] == 400


def test_closing_ends_the_polls_that_wait_and_nothing_is_leased_for_them(
    store: penstock.Penstock, server: Running
) -> None:
    ps = penstock.open(server.url)
    q = ps.create_queue("q")
    waiting = Background(lambda: q.lease(wait_s=30))
    wait_until(lambda: server.calls.polls.waiting == 1)
    ps.close()
    with pytest.raises(StorageError, match="closed"):
        waiting.result()
    store.queue("q").enqueue(b"x")
    assert [delivery.payload for delivery in store.queue("q").lease(wait_s=5)] == [b"x"]


# -- who may


def test_every_call_has_a_permission() -> None:
    one_queue = (permissions.OF_QUEUE, permissions.OF_QUEUES)
    tables = (*one_queue, permissions.OF_STORE, permissions.OF_ANYBODY, permissions.OF_TICKET)
    assert sorted(name for table in tables for name in table) == sorted(METHODS)


@pytest.mark.parametrize("method", sorted(permissions.OF_QUEUE))
@pytest.mark.parametrize("given", PERMISSIONS)
def test_a_permission_on_a_queue_allows_what_it_says_and_there_alone(method: str, given: Permission) -> None:
    who = Principal("who", {"mine-*": frozenset([given])})
    wanted = permissions.OF_QUEUE[method]
    settings = penstock.QueueSettings
    rest = [["id"], "mine-b"] if method == "move" else [10, "mine-b"]
    for queue, allowed in (("mine-a", given in (wanted, "admin")), ("other", False), ("", False)):
        named = settings(name=queue) if method in ("create_queue", "update_queue") else queue
        try:
            permissions.check(who, method, [named, *rest])
            assert allowed
        except Unauthorized:
            assert not allowed


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("move", ["mine-a", ["id"], "other"]),
        ("redrive", ["mine-a", 10, "other"]),
        ("redrive", ["mine-a", 10, None]),
        ("create_queue", [penstock.QueueSettings(name="mine-a", dead_letter="other")]),
        ("create_queue", [penstock.QueueSettings(name="mine-a", on_enqueue="return")]),
        ("get_state", ["key"]),
        ("append_entries", ["world", []]),
        ("queue", ["other"]),
        ("replace_queues", [[]]),
        ("declare_queues", [[penstock.QueueSettings(name="mine-a"), penstock.QueueSettings(name="other")]]),
        ("declare_queues", [[penstock.QueueSettings(name="mine-a", dead_letter="other")]]),
    ],
)
def test_what_reaches_beyond_a_queue_needs_more(method: str, args: list[object]) -> None:
    who = Principal("who", {"mine-*": frozenset(PERMISSIONS)})
    with pytest.raises(Unauthorized):
        permissions.check(who, method, args)
    permissions.check(Principal("all", {"*": frozenset(PERMISSIONS)}), method, args)


@pytest.mark.parametrize("method", ["append_entries", "configure_world"])
def test_nobody_writes_the_audit_or_makes_it_forget_but_the_server(method: str) -> None:
    who = Principal("all", {"*": frozenset(PERMISSIONS)})
    permissions.check(who, method, ["another", []])
    with pytest.raises(Unauthorized, match="_audit"):
        permissions.check(who, method, ["_audit", []])


def test_a_key_sees_its_queues_alone_and_its_deeds_are_recorded(store: penstock.Penstock) -> None:
    store.create_queue("other")
    server = Running(store, credentials=Keys(someone={"mine-*": ("admin",)}))
    url = server.url.replace("//", "//someone@")
    try:
        with penstock.open(url) as ps:
            ps.create_queue("mine-a")
            assert [settings.name for settings in ps.queues()] == ["mine-a"]
            assert ps.info().default.path is None
            with pytest.raises(Unauthorized):
                ps.queue("other")
            with pytest.raises(Unauthorized):
                ps.state.get("key")
        status, body = post(server, "queues")
        assert (status, decode_error(body)[0]) == (401, "Unauthorized")
        assert post(server, "queues", token="nobody")[0] == 401
        assert post(server, "stats", "other", token="someone")[0] == 403
        with pytest.raises(Unauthorized) as refused:
            penstock.open(server.url.replace("//", "//s3cret@"))
        assert "s3cret" not in str(refused.value)
    finally:
        server.stop()
    (entry,) = store.journal("_audit").scan()
    assert (entry.kind, entry.labels) == ("create_queue", ["principal:someone", "queue:mine-a"])


def test_arguments_by_name_do_not_go_past_the_permissions(store: penstock.Penstock) -> None:
    store.create_queue("other")
    server = Running(store, credentials=Keys(someone={"mine": ("admin",)}))
    try:
        body = encoded("stats", (), {"queue": "other"})
        assert send(server, "stats", body, "someone")[0] == 400
    finally:
        server.stop()


# -- what is no call


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x92\x90", msgspec.msgpack.encode([1, 2]), b"\x92\x91\xa1\xff\x80"]
)
def test_a_body_that_is_no_call_is_refused(server: Running, body: bytes) -> None:
    status, answer = send(server, "stats", body)
    assert (status, decode_error(answer)[0]) == (400, "Unreadable")


def test_errors_have_a_status(store: penstock.Penstock, server: Running) -> None:
    store.create_queue("q")
    assert post(server, "stats", "none")[0] == 404
    assert post(server, "create_queue", penstock.QueueSettings(name="q"))[0] == 409
    assert post(server, "lease", "q", -1, None, 0, "")[0] == 400
    assert post(server, "nothing")[0] == 404
    assert (
        urllib3.request("GET", f"{server.url}/v1/call/stats", headers={"connection": "close"}).status == 405
    )


def test_what_the_store_behind_the_server_cannot_do_is_refused_by_name(server: Running) -> None:
    with penstock.open(server.url) as ps:
        with pytest.raises(Unsupported, match="bulk_read"):
            ps.take_snapshot()
        with pytest.raises(Unsupported, match="bulk_write"):
            ps.begin_write()


# -- where


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://s3cret@example.org", "plain text"),
        ("https://example.org?token=s3cret", "does not belong"),
        ("https://example.org?other=s3cret", "unknown option 'other'"),
        ("https://:s3cret@", "not a URL"),
        ("https://s3cret%0a@example.org", "no key has"),
        ("https://s3cret@example.org:port", "not a URL"),
        ("https://s3cret@example.org?ca_file=/none", "ca_file '/none' cannot be used: No such file"),
        ("https://s3cret@example.org?cert_file=/none", "cert_file '/none' with key_file '/none' cannot"),
        ("https://s3cret@example.org?key_file=/none", "goes with cert_file"),
        ("http://s3cret@localhost?cert_file=/none", "go with https"),
    ],
)
def test_a_url_that_cannot_be_used_says_why_and_keeps_its_secret(url: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says) as refused:
        read(BackendSettings(url=url), {})
    assert "s3cret" not in str(refused.value)


def test_a_key_comes_from_the_url_or_the_environment() -> None:
    environ = {"PENSTOCK_TOKEN": "there"}
    for url, key in (("https://here@a", "here"), ("https://:here@a", "here"), ("https://a", "there")):
        place = read(BackendSettings(url=url), environ)
        assert place.headers["authorization"] == f"Bearer {key}"
        assert key not in repr(place)


def test_threads_share_a_store_and_its_connections(server: Running) -> None:
    with penstock.open(server.url) as ps:
        q = ps.create_queue("q")
        threads = [threading.Thread(target=lambda: [q.enqueue(b"x") for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert q.length() == 80


def test_queues_that_are_declared_at_a_server_with_several_backends_are_where_they_were(
    tmp_path: Path,
) -> None:
    (tmp_path / "penstock.yaml").write_text(
        "storage: {engine: memory}\nbackends: {second: {url: 'memory:'}}\n"
    )
    with penstock.open(tmp_path / "penstock.yaml") as both:
        both.create_queue("there", backend="second")
        running = Running(both)
        (tmp_path / "client.yaml").write_text(
            f"storage: {{engine: memory}}\nbackends: {{far: {{url: '{running.url}'}}}}\n"
            "queues: {there: {backend: far, lease_s: 5}, new: {backend: far}}\n"
        )
        with penstock.open(tmp_path / "client.yaml") as ps:
            assert [one.name for one in ps.queues()] == ["new", "there"]
        homes = {name: [one.name for one in backend.queues()] for name, backend in both.backends.items()}
        assert homes == {"default": ["new"], "second": ["there"]}
        assert both.queue("there").settings().lease_s == 5
        running.stop()
