"""The helper process: what it is denied, how it is killed, and that it never outlives its parent."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock import BackendNotInstalled, BackendUnavailable, HookError, NewMessage
from penstock.config import HookSettings
from penstock.hooks import helper, pool
from penstock.hooks.helper import Helper
from penstock.hooks.scripts import Refused
from tests.hooks.running import (
    BOMB,
    alive,
    enqueued,
    helper_of,
    kill,
    on_enqueue,
    refused,
    running,
    until,
)

ROOT = Path(__file__).parents[2]
MARK = on_enqueue("message.headers.seen = 'yes'")


def test_no_process_is_started_before_a_script_is_set() -> None:
    with penstock.open("memory:") as ps:
        ps.create_queue("q").enqueue(b"x")
        assert ps._default._hooking.scripts.pool.pid is None  # type: ignore[attr-defined]


def test_the_helper_has_no_file_of_its_parents_and_can_open_none() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)  # As careless as can be.
    try:
        with running() as scripts:
            enqueued(scripts, MARK)
            pid = helper_of(scripts)
            assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]
            limits = Path(f"/proc/{pid}/limits").read_text()
            found = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()[1:]}
            assert found["Max open files"] == ["3", "3"]
            assert found["Max file size"] == ["0", "0"]
            assert found["Max core file size"] == ["0", "0"]
            assert found["Max processes"] == ["0", "0"]
            assert int(found["Max address space"][1]) < 2**30
            status = Path(f"/proc/{pid}/status").read_text()
            assert "NoNewPrivs:\t1" in status
    finally:
        os.close(read)
        os.close(write)


def test_the_helper_knows_nothing_of_its_parents_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    with running() as scripts:
        enqueued(scripts, MARK)
        assert b"secret" not in Path(f"/proc/{helper_of(scripts)}/environ").read_bytes()


def test_the_helper_is_of_a_session_of_its_own() -> None:
    """An interrupt typed at the terminal reaches the parent alone."""
    with running() as scripts:
        enqueued(scripts, MARK)
        assert os.getsid(helper_of(scripts)) == helper_of(scripts) != os.getsid(0)


def test_the_helper_imports_nothing_of_penstock() -> None:
    """It starts in milliseconds, and has no store to harm."""
    with running() as scripts:
        enqueued(scripts, MARK)
        maps = Path(f"/proc/{helper_of(scripts)}/maps").read_text()
        assert "lua54" in maps
        assert "rocksdict" not in maps


def test_closing_ends_the_helper() -> None:
    with running() as scripts:
        enqueued(scripts, MARK)
        pid = helper_of(scripts)
        assert alive(pid)
    assert not alive(pid)
    (error,) = refused(scripts, MARK)
    assert "closed" in str(error)


def test_a_store_that_nobody_closes_takes_its_helper_with_it() -> None:
    ps = penstock.open("memory:")
    ps.create_queue("q", on_enqueue=MARK.source.text)
    pid = ps._default._hooking.scripts.pool.pid  # type: ignore[attr-defined]
    assert alive(pid)
    ps.close()
    assert not alive(pid)


def test_a_helper_that_was_killed_while_idle_is_replaced_and_nobody_notices() -> None:
    with running() as scripts:
        enqueued(scripts, MARK)
        first = helper_of(scripts)
        kill(first)
        until(lambda: not alive(first))
        assert enqueued(scripts, MARK, NewMessage(b"a"), NewMessage(b"b"))[1].headers == {"seen": "yes"}
        assert helper_of(scripts) != first


def test_a_helper_that_is_killed_in_the_middle_of_a_batch_punishes_no_message() -> None:
    asked = threading.Event()
    answer = threading.Event()

    def read(key: str) -> bytes:
        asked.set()
        assert answer.wait(30)
        return b"value"

    with running() as scripts:
        scripts._read_state = read
        script = on_enqueue("message.headers.seen = penstock.get('key' .. message.payload)")
        found: list[object] = []
        messages = [NewMessage(b"%d" % n) for n in range(50)]
        thread = threading.Thread(target=lambda: found.extend(scripts.enqueue(script, messages)))
        thread.start()
        assert asked.wait(30)
        kill(helper_of(scripts))
        answer.set()
        thread.join(60)
        assert [one.headers for one in found if isinstance(one, NewMessage)] == [{"seen": "value"}] * 50


def test_a_helper_that_is_killed_again_and_again_is_not_started_for_ever() -> None:
    with running() as scripts:

        def read(key: str) -> bytes:
            kill(helper_of(scripts))
            return b""

        scripts._read_state = read
        (error,) = refused(scripts, on_enqueue("penstock.get('k')"))
        assert "its helper process ended (SIGKILL)" in str(error)
        scripts._read_state = lambda key: None
        assert refused(scripts, on_enqueue("penstock.get('k')")) == [None]


def test_a_helper_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "WORK_PATIENCE_S", 0.5)
    with running() as scripts:
        enqueued(scripts, MARK)
        first = helper_of(scripts)
        os.kill(first, signal.SIGSTOP)
        assert enqueued(scripts, MARK)[0].headers == {"seen": "yes"}
        assert not alive(first)


def test_a_loop_is_stopped_at_its_line_and_the_helper_goes_on() -> None:
    """Only what stays inside a library function costs the process."""
    with running(HookSettings(time_limit_ms=100)) as scripts:
        enqueued(scripts, MARK)
        first = helper_of(scripts)
        for body in ("while true do end", "while true do pcall(function() while true do end end) end"):
            (error,) = refused(scripts, on_enqueue(body))
            assert str(error) == "queue 'q': on_enqueue:2: stopped after 100 ms"
        assert helper_of(scripts) == first


def test_messages_before_and_after_a_culprit_are_not_punished(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Helper] = []

    def start(settings: HookSettings) -> Helper:
        started.append(Helper(settings))
        return started[-1]

    monkeypatch.setattr(pool, "Helper", start)
    with running() as scripts:
        script = on_enqueue(f"if message.headers.bomb then {BOMB} end message.fairness_key = message.payload")
        messages = [NewMessage(b"%d" % n, {"bomb": "x"} if n in (3, 60) else {}) for n in range(120)]
        found = scripts.enqueue(script, messages)
        assert [n for n, one in enumerate(found) if isinstance(one, Refused)] == [3, 60]
        kept = [one.fairness_key for one in found if isinstance(one, NewMessage)]
        assert kept == [str(n) for n in range(120) if n not in (3, 60)]
    assert len(started) <= 8  # Two for each culprit, and a few where the machine stalls.


def test_an_interrupt_in_the_middle_leaves_nothing_that_answers_the_next_call() -> None:
    with running() as scripts:

        def read(key: str) -> bytes:
            raise KeyboardInterrupt

        scripts._read_state = read
        with pytest.raises(KeyboardInterrupt):
            scripts.enqueue(on_enqueue("message.headers.a = penstock.get('k')"), [NewMessage()])
        assert scripts.pool.pid is None
        assert enqueued(scripts, MARK)[0].headers == {"seen": "yes"}


def test_a_call_in_the_middle_of_a_call_of_the_same_thread_is_refused() -> None:
    """As from a signal handler: waiting would be for ever."""
    with running() as scripts:
        errors: list[BaseException] = []

        def read(key: str) -> None:
            try:
                scripts.enqueue(MARK, [NewMessage()])
            except BackendUnavailable as error:
                errors.append(error)

        scripts._read_state = read
        enqueued(scripts, on_enqueue("penstock.get('k')"))
        assert len(errors) == 1
        assert enqueued(scripts, MARK)[0].headers == {"seen": "yes"}


def test_a_batch_of_a_slow_script_lets_others_in_between() -> None:
    slow = on_enqueue("for i = 1, 300000 do end message.headers.seen = 'yes'")
    with running(HookSettings(time_limit_ms=1000)) as scripts:
        scripts.check(slow)
        scripts.check(MARK)
        order: list[str] = []
        first = threading.Event()

        def work() -> None:
            for some in scripts.pool.answers(slow.source, 0.0, _packed(300), lambda key: b""):
                order.extend(["slow"] * len(some))
                first.set()

        thread = threading.Thread(target=work)
        # One message a slice: every slice is a chance for another.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "MOST_MESSAGES", 1)
            thread.start()
            assert first.wait(30)
            enqueued(scripts, MARK)
            order.append("quick")
            thread.join(120)
        assert 0 < order.index("quick") < 299


def _packed(count: int) -> list[bytes]:
    from penstock.hooks.wire import pack_new

    return [pack_new(NewMessage())] * count


CHILD = """
import os, sys, penstock
ps = penstock.open("memory:")
script = "function on_enqueue(m) if m.payload == 'x' then penstock.get('k') end end"
q = ps.create_queue("q", on_enqueue=script)
q.enqueue(b"")
print(ps._default._hooking.scripts.pool.pid, flush=True)
if sys.argv[1] == "busy":
    ps._default._hooking.scripts._read_state = lambda key: print("asked", flush=True) or sys.stdin.read()
    q.enqueue(b"x")
elif sys.argv[1] == "forked":
    fork = os.fork()
    if fork == 0:
        import threading
        os.close(1)
        threading.Event().wait()
    print("forked", fork, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["idle", "busy", "forked"])
def test_a_parent_that_is_killed_leaves_no_helper(how: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD, how], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    fork = 0
    try:
        pid = int(parent.stdout.readline())
        if how != "idle":
            said = parent.stdout.readline().split()
            assert said[0] == ("asked" if how == "busy" else "forked")
            fork = int(said[1]) if how == "forked" else 0
        assert alive(pid)
        parent.kill()
        until(lambda: not alive(pid))
    finally:
        parent.kill()
        parent.communicate()
        if fork:
            kill(fork)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with running() as scripts:
        with pytest.raises(
            BackendNotInstalled, match=r"lupa is not installed; pip install 'penstock\[lua\]'"
        ):
            scripts.check(MARK)
        (error,) = refused(scripts, MARK)
        assert isinstance(error, HookError)
        assert error.retryable
        assert "pip install 'penstock[lua]'" in str(error)


def test_a_package_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "_lua_folder", lambda: "/nowhere")
    with pytest.raises(HookError, match="cannot start: ModuleNotFoundError"):
        Helper(HookSettings())


def test_a_python_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(HookError, match="cannot be started"):
        Helper(HookSettings())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(HookError, match="ended at its start: exit status 1"):
        Helper(HookSettings())


def test_a_helper_that_answers_nonsense_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"a\xdd\x00\x00\x00\x05" + b"\xc0" * 5, b"a\xc1"]  # Too many, and no MessagePack.
    with running() as scripts:
        enqueued(scripts, MARK)
        with monkeypatch.context() as patch:
            patch.setattr(Helper, "ask", lambda *_: answers.pop(0))
            (error,) = refused(scripts, MARK)
        assert "answered what is no answer" in str(error)
        assert enqueued(scripts, MARK)[0].headers == {"seen": "yes"}
