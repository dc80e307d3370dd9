"""What goes wrong at one end of an attachment stays there: forks, deaths in a call, closes, garbage."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import NewMessage, Penstock, QueueNotFound, StorageCorrupt, StorageError
from penstock.backends.attached.wire import SOCKET_NAME
from penstock.errors import KeyMissing, StoreLocked
from tests.attached.test_attaching import PATIENCE_S, line, process, tell, until


def in_thread(call: Callable[[], Any]) -> Callable[..., Any]:
    """Start it; the function that is returned waits for its answer, or raises its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:  # noqa: BLE001 (raised by the one who waits)
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def answer(within_s: float = PATIENCE_S) -> Any:
        thread.join(within_s)
        assert found, "it is still waiting"
        value, error = found[0]
        if error is not None:
            raise error
        return value

    return answer


def within_patience(call: Callable[[], Any]) -> Any:
    return in_thread(call)()


# -- forks


FORKING_OWNER = """
import os, threading
ps = penstock.open(sys.argv[1])
ps.create_queue("q")
sys.stdin.readline()
if os.fork() == 0:
    print(os.getpid(), flush=True)  # By now it has let go of what it inherited.
    threading.Event().wait(120)
    os._exit(0)
sys.stdin.readline()
"""


def test_a_fork_of_the_owner_does_not_keep_others_waiting_for_it(tmp_path: Path) -> None:
    with process(FORKING_OWNER, tmp_path / "store") as owner, ExitStack() as stack:
        until((tmp_path / "store" / SOCKET_NAME).exists)
        with penstock.open(tmp_path / "store") as ps:
            until(ps.queues)
            q = ps.queue("q")
            tell(owner)
            stack.callback(os.kill, int(line(owner)), signal.SIGKILL)
            owner.kill()
            owner.wait()
            within_patience(lambda: q.enqueue(b"x"))
            with within_patience(lambda: penstock.open(tmp_path / "store")) as another:
                assert another.queue("q").length() == 1


FORKING_CONSUMER = """
import os, threading
q = penstock.open(sys.argv[1]).queue("q")
waiting = threading.Thread(target=lambda: q.lease(wait_s=600), daemon=True)
waiting.start()
sys.stdin.readline()
if os.fork() == 0:
    print(os.getpid(), flush=True)  # By now it has let go of what it inherited.
    threading.Event().wait(120)
    os._exit(0)
sys.stdin.readline()
"""


def test_nothing_is_leased_to_a_consumer_that_lives_on_in_its_fork_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q")
        with process(FORKING_CONSUMER, tmp_path / "store") as consumer, ExitStack() as stack:
            until(lambda: ps._default.engine.waiting)  # type: ignore[attr-defined]
            tell(consumer)
            stack.callback(os.kill, int(line(consumer)), signal.SIGKILL)
            consumer.kill()
            consumer.wait()
            q.enqueue(b"x")
            threading.Event().wait(0.2)  # Whoever waits wrongly would take it now.
            assert q.stats().ready == 1


# -- an owner that dies in the middle of a bulk call

BULK_OWNER = """
import os, signal, threading
from penstock.backends.embedded.bulk import Bulk
ps = penstock.open(sys.argv[1])
q = ps.create_queue("q")
real, slices = Bulk._slice, []
def slice_(self, work):
    slices.append(work)
    if len(slices) == 2:
        others = threading.Thread(target=exec, args=(sys.argv[2], {**globals(), **locals()}))
        others.start()
        others.join()
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, work)
Bulk._slice = slice_
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("call", ["purge", "redrive"])
def test_a_short_bulk_call_whose_owner_dies_between_its_slices_happens_once(
    tmp_path: Path, call: str
) -> None:
    new = {
        "purge": "q.enqueue(b'new')",
        "redrive": "q.enqueue(b'new')\nq.reject([d.receipt for d in q.lease(100)])",
    }
    with process(BULK_OWNER, tmp_path / "store", new[call]) as owner:
        assert line(owner) == "ready"
        with penstock.open(tmp_path / "store") as ps:
            q = ps.queue("q")
            q.enqueue_many([NewMessage(b"old")] * 10)
            if call == "purge":
                assert within_patience(q.purge) == 10
                assert [m.payload for m in q.peek()] == [b"new"]
            else:
                q.reject([d.receipt for d in q.lease(10)])
                assert within_patience(lambda: q.redrive(limit=20)) == 10
                assert q.stats().dead == 11, "which died after the call"
            assert ps.check().ok


DAMAGE = """
from penstock.backends.embedded import keys
e = self._engine
prefix = keys.state_prefix(e.queues["q"].qid, work.job.states[0])
rows = list(e.kv.scan(e.state, prefix, keys.after_prefix(prefix)))
batch = e.kv.batch()
batch.put(rows[len(rows) // 2][0], b"\\x01", e.state)
e.kv.write(batch, sync=True)
"""


def test_a_bulk_call_that_is_asked_again_and_meets_damage_says_so(tmp_path: Path) -> None:
    with process(BULK_OWNER, tmp_path / "store", DAMAGE) as owner:
        assert line(owner) == "ready"
        with penstock.open(tmp_path / "store") as ps:
            q = ps.queue("q")
            for _ in range(2):
                q.enqueue_many([NewMessage(b"x")] * 500)
            while deliveries := q.lease(500):
                q.reject([d.receipt for d in deliveries])
            with pytest.raises(StorageCorrupt, match=r"job \d+ was left alone.*ask again"):
                within_patience(lambda: q.redrive(limit=5000))
            q.enqueue(b"others go on")


# -- errors, and what is on a line when a call ends early


@pytest.fixture
def two(tmp_path: Path) -> Any:
    with penstock.open(tmp_path / "store") as owner, penstock.open(tmp_path / "store") as attached:
        owner.create_queue("q")
        yield owner, attached


def test_an_error_about_a_name_that_is_no_utf8_comes_back_as_it_is(two: tuple[Penstock, Penstock]) -> None:
    q = two[1].queue("q")
    message_id = q.enqueue(b"x")
    for call in (lambda: q.redrive(1, target="caf\udce9"), lambda: q.move([message_id], "caf\udce9")):
        with pytest.raises(QueueNotFound) as raised:
            within_patience(call)
        assert raised.value.name == "caf\udce9"
    good, bad = q.lease()[0].receipt, "a\ud800"
    assert [outcome.ok for outcome in q.ack([good, bad])] == [True, False]


def test_an_error_that_cannot_be_sent_at_all_is_answered_still(
    two: tuple[Penstock, Penstock], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unsendable(penstock.PenstockError):
        def __str__(self) -> str:
            raise RuntimeError

    def fail(*args: object) -> None:
        raise Unsendable

    monkeypatch.setattr(two[0]._default, "stats", fail)
    with pytest.raises(penstock.PenstockError, match="Unsendable, which cannot be sent"):
        within_patience(two[1].queue("q").stats)


def test_a_progress_callback_that_raises_leaves_nothing_for_the_next_call(
    two: tuple[Penstock, Penstock],
) -> None:
    ps = two[1]
    q = ps.queue("q")
    q.enqueue_many([NewMessage(b"x")] * 50)

    def fail(*how_far: object) -> None:
        ps.queue("no such queue")

    with pytest.raises(QueueNotFound):
        ps.check(progress=fail)
    assert q.length() == 50


def test_an_interrupted_reindex_of_another_process_is_finished_by_the_owner(
    two: tuple[Penstock, Penstock],
) -> None:
    owner, ps = two
    ps.queue("q").enqueue_many([NewMessage(b"x")] * 12_000)

    def interrupt(*how_far: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ps.reindex(progress=interrupt)
    assert owner.check().ok
    assert owner.queue("q").stats().ready == 12_000


# -- closing


def test_closing_ends_a_lease_that_waits(two: tuple[Penstock, Penstock]) -> None:
    owner, ps = two
    q = ps.queue("q")
    waiting = in_thread(lambda: q.lease(wait_s=600))
    until(lambda: owner._default.engine.waiting)  # type: ignore[attr-defined]
    ps.close()
    with pytest.raises(StorageError, match="it was closed"):
        waiting()
    owner.queue("q").enqueue(b"x")
    threading.Event().wait(0.2)
    assert owner.queue("q").stats().ready == 1


SLOW_CHECK = """
import threading
ps = penstock.open(sys.argv[1])
ps.create_queue("q").enqueue(b"x")
def check(self, **options):
    print("checking", flush=True)
    threading.Event().wait(600)
ps._default._checkup.check = lambda **options: check(None)
print("ready", flush=True)
sys.stdin.readline()
ps.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def test_an_owner_that_closes_does_not_wait_for_a_check_that_another_asked_for(tmp_path: Path) -> None:
    with process(SLOW_CHECK, tmp_path / "store") as owner:
        assert line(owner) == "ready"
        with penstock.open(tmp_path / "store") as ps:
            report = in_thread(ps.check)
            assert line(owner) == "checking"
            tell(owner)
            # Calls look for an owner for ten seconds: less than that, and by far.
            assert in_thread(lambda: line(owner))(within_s=8.0) == "closed"
            ps.queue("q").enqueue(b"y")
            assert report().ok, "asked again of the next owner"


IDLE_OWNER = "ps = penstock.open(sys.argv[1])\nps.create_queue('q')\nprint(flush=True)\ninput()"


@pytest.mark.parametrize("refusal", [StoreLocked("just ending"), KeyMissing("no such key")])
def test_a_process_that_cannot_take_over_now_looks_on(tmp_path: Path, refusal: StorageError) -> None:
    with process(
        "ps = penstock.open(sys.argv[1])\nps.create_queue('q')\nprint(flush=True)\ninput()", tmp_path
    ) as owner:
        line(owner)
        with penstock.open(tmp_path) as ps:
            backend: Any = ps._default
            own, refusals = backend._own, [refusal, refusal]

            def reluctant() -> Any:
                if refusals:
                    raise refusals.pop()
                return own()

            backend._own = reluctant
            owner.kill()
            owner.wait()
            ps.queue("q").enqueue(b"x")
            assert refusals == []


SIGNALLED = """
import os, signal, threading
ps = penstock.open(sys.argv[1])
q = ps.queue("q")
own, taking_over = ps._default._own, threading.Event()
def slowly():
    if threading.current_thread() is not threading.main_thread():
        return None
    os.kill(os.getpid(), signal.SIGTERM)  # Handled here, in the middle of the take-over.
    return own()
ps._default._own = slowly
signal.signal(signal.SIGTERM, lambda *_: ps.close())
print("ready", flush=True)
sys.stdin.readline()
try:
    q.enqueue(b"x")
except penstock.StorageError as error:
    print(error, flush=True)
anew = penstock.open(sys.argv[1])
print(anew.info().default.attached_to, flush=True)
"""


def test_a_signal_handler_may_close_the_store_during_a_take_over(tmp_path: Path) -> None:
    owner = penstock.open(tmp_path / "store")
    owner.create_queue("q")
    with process(SIGNALLED, tmp_path / "store") as other:
        assert line(other) == "ready"
        owner.close()
        tell(other)
        assert "it was closed" in within_patience(lambda: line(other))
        assert within_patience(lambda: line(other)) == "None"


# -- an owner whose store has stopped


def test_a_store_that_has_stopped_is_opened_again_by_another(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as owner:
        owner.create_queue("q")
        with penstock.open(tmp_path / "store") as ps:
            engine: Any = owner._default.engine  # type: ignore[attr-defined]
            engine.stop(StorageError("the disk failed"))
            within_patience(lambda: ps.queue("q").enqueue(b"x"))
            assert ps.info().default.attached_to is None
            with pytest.raises(StorageError, match="the disk failed"):
                owner.queue("q")
            assert "the disk failed" in str(owner.health().reasons)


def test_after_a_full_disk_any_process_can_go_on_once_there_is_room(tmp_path: Path) -> None:
    with process(NO_ROOM, tmp_path / "store") as owner:
        line(owner)
        with penstock.open(tmp_path / "store") as ps:
            q = ps.queue("q")
            q.enqueue(b"before")
            tell(owner)
            assert line(owner) == "no room"
            with pytest.raises(penstock.StorageFull):
                q.enqueue(b"in vain")
            assert q.length() == 1
            tell(owner)
            assert line(owner) == "room"
            within_patience(lambda: persistently(lambda: q.enqueue(b"after")))
            assert {d.payload for d in q.lease(10)} == {b"before", b"after"}
            assert ps.info().default.attached_to is None
            assert ps.check().ok


def persistently(call: Callable[[], Any]) -> Any:
    """As a caller would that knows which errors to try again after."""
    while True:
        try:
            return call()
        except StorageError:
            threading.Event().wait(0.05)


NO_ROOM = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ps = penstock.open(sys.argv[1])
ps.create_queue("q")
print("open", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
print("no room", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("room", flush=True)
sys.stdin.readline()
"""


STOPPED = """
def fail():
    raise penstock.StorageError("the disk failed")
with penstock.open(sys.argv[1]) as ps:
    q = ps.create_queue("q")
    q.enqueue_many([penstock.NewMessage(b"x" * 200)] * 5000)
    ps._default._kv.sync = fail
    try:
        q.enqueue(b"x")
    except penstock.StorageError as error:
        print(error, flush=True)
"""


def test_a_process_whose_store_has_stopped_ends_in_order(tmp_path: Path) -> None:
    with process(STOPPED, tmp_path / "store") as stopped:
        assert "the disk failed" in within_patience(lambda: line(stopped))
        assert within_patience(stopped.wait) == 0


# -- who comes in


def test_a_length_alone_takes_no_memory(two: tuple[Penstock, Penstock], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect(str(tmp_path / "store" / SOCKET_NAME))
        before = _resident_bytes()
        visitor.sendall(struct.pack("<Q", 1 << 30) + b"x")
        threading.Event().wait(0.3)
        assert _resident_bytes() - before < 1 << 28


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_owner_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.backends.attached.line.PATIENCE_S", 0.2)
    with process(IDLE_OWNER, tmp_path / "store") as owner:
        line(owner)
        owner.send_signal(signal.SIGSTOP)
        with pytest.raises(penstock.BackendUnavailable, match="does not answer"):
            within_patience(lambda: penstock.open(tmp_path / "store"))
        owner.send_signal(signal.SIGCONT)
        penstock.open(tmp_path / "store").close()


def test_a_crowd_before_an_owner_that_lets_nobody_in_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.backends.attached.place.PATIENCE_S", 1.0)
    monkeypatch.setattr("penstock.backends.sharing.PATIENCE_S", 1.0)
    with process(IDLE_OWNER, tmp_path / "store") as owner, ExitStack() as crowd:
        line(owner)
        owner.send_signal(signal.SIGSTOP)
        until(lambda: Path(f"/proc/{owner.pid}/stat").read_text().rpartition(") ")[2].startswith("T"))
        waits = 0
        while not waits:
            visitor = crowd.enter_context(socket.socket(socket.AF_UNIX))
            visitor.setblocking(False)
            waits = visitor.connect_ex(str(tmp_path / "store" / SOCKET_NAME))
        with pytest.raises(StoreLocked, match="does not answer"):
            within_patience(lambda: penstock.open(tmp_path / "store"))
        owner.send_signal(signal.SIGCONT)
        crowd.close()
        within_patience(lambda: penstock.open(tmp_path / "store")).close()


def test_where_nobody_can_be_let_in_the_store_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "penstock-listener":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            penstock.open(tmp_path / "store")
    with within_patience(lambda: penstock.open(tmp_path / "store")) as ps:
        assert ps.info().default.attached_to is None
