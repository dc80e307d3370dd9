"""Owners and those attached to them: who is who, who comes next, and what is refused."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock import StorageError
from penstock.backends.attached import wire
from penstock.backends.attached.backend import AttachedBackend
from penstock.backends.attached.wire import SOCKET_NAME
from penstock.backends.base import QueueBackend
from penstock.backends.forwarding.contract import Forwarded
from penstock.backends.forwarding.methods import METHODS

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0


@contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another interpreter that runs this code; it is killed in the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys, penstock\n" + code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def until(condition: object) -> None:
    """Wait for something that another process or thread brings about."""
    pause = threading.Event()
    for _ in range(round(PATIENCE_S / 0.01)):
        if condition():  # type: ignore[operator]
            return
        pause.wait(0.01)
    raise AssertionError("it never came about")


OWNER = """
ps = penstock.open(sys.argv[1])
q = ps.create_queue("q")
q.enqueue(b"from the owner")
print(ps.info().default.attached_to, flush=True)
sys.stdin.readline()
ps.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def test_a_second_process_attaches_and_only_info_tells(tmp_path: Path) -> None:
    with process(OWNER, tmp_path / "store") as owner:
        assert line(owner) == "None"
        with penstock.open(tmp_path / "store") as ps:
            info = ps.info().default
            assert (info.attached_to, info.backend, info.engine) == (owner.pid, "embedded", "rocksdb")
            assert [d.payload for d in ps.queue("q").lease()] == [b"from the owner"]
            assert ps.check().ok


def test_a_second_opening_in_the_same_process_attaches_too(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as first, penstock.open(tmp_path / "store") as second:
        first.create_queue("q").enqueue(b"x")
        assert second.queue("q").length() == 1
        assert (first.info().default.attached_to, second.info().default.attached_to) == (None, os.getpid())


def test_the_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store"):
        assert stat.S_IMODE((tmp_path / "store" / SOCKET_NAME).stat().st_mode) == 0o600
    assert not (tmp_path / "store" / SOCKET_NAME).exists()


@pytest.mark.parametrize("how", ["closes", "is killed"])
def test_when_the_owner_goes_another_takes_over_though_nobody_calls(tmp_path: Path, how: str) -> None:
    with process(OWNER, tmp_path / "store") as owner:
        line(owner)
        with penstock.open(tmp_path / "store") as ps, penstock.open(tmp_path / "store") as other:
            assert ps.info().default.attached_to == owner.pid
            if how == "closes":
                tell(owner)
                assert line(owner) == "closed"
            else:
                owner.kill()
            pid = str(os.getpid())
            until(lambda: (tmp_path / "store" / "OWNER").read_text().strip() == pid)
            # Who takes over is known to others a moment before itself.
            until(lambda: {one.info().default.attached_to for one in (ps, other)} == {None, os.getpid()})
            for one in (ps, other):
                one.queue("q").enqueue(b"y")
            assert ps.queue("q").length() == 3


def test_a_long_poll_wakes_when_another_process_enqueues(tmp_path: Path) -> None:
    producer = "ps = penstock.open(sys.argv[1])\nsys.stdin.readline()\nps.queue('q').enqueue(b'work')"
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q")
        with process(producer, tmp_path / "store") as other:
            tell(other)
            assert [d.payload for d in q.lease(wait_s=PATIENCE_S)] == [b"work"]


def test_a_long_poll_of_an_attached_process_wakes_too(tmp_path: Path) -> None:
    consumer = (
        "q = penstock.open(sys.argv[1]).queue('q')\nprint('waiting', flush=True)\n"
        "print([d.payload for d in q.lease(wait_s=30)], flush=True)"
    )
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q")
        with process(consumer, tmp_path / "store") as other:
            assert line(other) == "waiting"
            q.enqueue(b"work")
            assert line(other) == "[b'work']"


def test_nothing_is_leased_to_a_process_that_died_while_it_waited(tmp_path: Path) -> None:
    consumer = "q = penstock.open(sys.argv[1]).queue('q')\nprint('waiting', flush=True)\nq.lease(wait_s=600)"
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q")
        with process(consumer, tmp_path / "store") as other:
            assert line(other) == "waiting"
            backend = ps._default
            until(lambda: backend.engine.waiting)  # type: ignore[attr-defined]
            other.kill()
            other.wait()
        q.enqueue(b"work")
        pause = threading.Event()
        pause.wait(0.2)  # Whoever waits wrongly would take it now.
        assert q.stats().ready == 1


def test_a_long_poll_goes_on_under_the_next_owner(tmp_path: Path) -> None:
    with process(OWNER, tmp_path / "store") as owner:
        line(owner)
        with penstock.open(tmp_path / "store") as ps:
            q = ps.queue("q")
            assert len(q.lease()) == 1
            found: list[bytes] = []
            waiter = threading.Thread(
                target=lambda: found.extend(d.payload for d in q.lease(wait_s=PATIENCE_S))
            )
            waiter.start()
            owner.send_signal(signal.SIGKILL)
            q.enqueue(b"later")
            waiter.join(PATIENCE_S)
            assert found == [b"later"]


def test_errors_come_back_as_what_they_were(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as owner, penstock.open(tmp_path / "store") as ps:
        owner.create_queue("q")
        with pytest.raises(penstock.QueueAlreadyExists) as raised:
            ps.create_queue("q")
        assert raised.value.name == "q"
        (outcome,) = ps.queue("q").ack(["ab" * 28])
        assert isinstance(outcome.error, penstock.StaleReceipt)
        assert outcome.error.receipt == "ab" * 28
        assert str(outcome.error).startswith("receipt 'abab")


def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8) / "store"
    with penstock.open(deep) as owner, penstock.open(deep) as ps:
        owner.create_queue("q").enqueue(b"x")
        assert ps.queue("q").length() == 1


def test_a_forked_child_is_refused_and_can_attach_anew(tmp_path: Path) -> None:
    code = """
import os
first = penstock.open(sys.argv[1])
first.create_queue("q")
second = penstock.open(sys.argv[1])
if os.fork() == 0:
    for ps in (first, second):
        try:
            ps.queue("q")
        except penstock.StorageError as error:
            print("open it anew" in str(error), flush=True)
        ps.close()
    anew = penstock.open(sys.argv[1])
    print(anew.info().default.attached_to == os.getppid(), anew.queue("q").enqueue(b"x") != "", flush=True)
    os._exit(0)
os.wait()
print(first.queue("q").length(), flush=True)
"""
    with process(code, tmp_path / "store") as child:
        assert [line(child) for _ in range(4)] == ["True", "True", "True True", "1"]


def test_a_garbled_visitor_does_not_disturb_the_owner(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q")
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x04\0\0\0\0\0\0\0abcd", b"\xff" * 64):
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.connect(str(tmp_path / "store" / SOCKET_NAME))
                visitor.sendall(garbage)
        with penstock.open(tmp_path / "store") as other:
            other.queue("q").enqueue(b"x")
        assert q.length() == 1


def test_another_protocol_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(tmp_path / "store"):
        monkeypatch.setattr(wire, "PROTOCOL", 2)
        welcome = wire.decode_welcome
        monkeypatch.setattr(wire, "decode_welcome", lambda raw: _old(welcome(raw)))
        with pytest.raises(StorageError, match=r"owned by process \d+ with Penstock .* use the same version"):
            penstock.open(tmp_path / "store")


def _old(welcome: wire.Welcome) -> wire.Welcome:
    welcome.protocol = 1
    return welcome


def test_what_a_gone_caller_was_told_is_forgotten(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        ps.create_queue("q")
        with penstock.open(tmp_path / "store") as other:
            other.queue("q").enqueue(b"x")
            assert len(ps._default.callers()) == 1  # type: ignore[attr-defined]
        until(lambda: not ps._default.callers())  # type: ignore[attr-defined]


def test_processes_that_update_different_settings_lose_neither(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as owner, penstock.open(tmp_path / "store") as other:
        owner.create_queue("q")

        def update(ps: penstock.Penstock, setting: str) -> None:
            for value in range(1, 51):
                ps.update_queue("q", **{setting: value})

        threads = [
            threading.Thread(target=update, args=(ps, setting))
            for ps, setting in ((owner, "lease_s"), (other, "max_attempts"), (other, "dedup_window_s"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (settings,) = owner.queues()
        assert (settings.lease_s, settings.max_attempts, settings.dedup_window_s) == (50, 50, 50)


def test_every_call_of_the_contract_is_forwarded() -> None:
    backends: list[type[QueueBackend]] = [
        AttachedBackend
    ]  # And as the contract says: the type checker's to tell.
    assert backends
    assert set(METHODS) <= set(vars(Forwarded))


def test_what_lasts_tells_how_far_it_is_through_an_attachment(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as owner, penstock.open(tmp_path / "store") as ps:
        owner.create_queue("q").enqueue_many([penstock.NewMessage(b"x")] * 2000)
        told: list[tuple[str, int, int]] = []
        for call in (ps.check, ps.reindex):
            assert call(progress=lambda *how_far: told.append(how_far)).ok
            assert told
            told.clear()
        assert ps.check(repair=True).ok
        assert list(ps.quarantine()) == []
        assert ps.queue("q").length() == 2000
