"""The helper process: runs scripts on packed messages, within limits, until the line to its parent ends.

A program of its own, run by its path: it imports nothing of Penstock, and of others only Lua. Its parent
imports the numbers at the top. What happens inside a script is `sandbox.lua`'s; here is what stops one that
stays inside a library function, and what the process may not do.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: What the parent says: check a script and keep it; run one; answer a question.
LOAD, RUN, VALUE, NO_VALUE, BAD_KEY = b"L", b"R", b"V", b"N", b"B"
#: What the child says: it is ready, or cannot be; answers; a script that it does not have; a question.
READY, BROKEN, ANSWERS, UNKNOWN, ASK = b"r", b"b", b"a", b"u", b"k"

#: script, length of the hook's name, of the queue's; script, batch, time in seconds, number of messages.
LOAD_HEAD = struct.Struct("<QHH")
RUN_HEAD = struct.Struct("<QQdI")
LENGTH = struct.Struct("<I")

#: Codes of answers; `sandbox.lua` has the same.
CHANGED, REFUSED, FAILED, STOPPED, RETRY, DEAD, DROP = range(7)

#: Beyond them, the one that was not run for longest is loaded again when its turn comes.
MOST_SCRIPTS = 256
MOST_ANSWERS_BYTES = 1 << 20
MOST_KNOWN = 1000
#: Besides what scripts may take: the interpreter, its libraries, and messages on their way.
OWN_BYTES = 512 << 20
#: What Lua takes for a string besides its bytes, and some more.
SPARE_BYTES = 1024
COLLECT = b"collectgarbage()"
#: Kernels look at processor time at their ticks.
TICK_S = 0.01
LOOK_FOR_PARENT_MS = 5000

_LINE = 0
_STOPPED_ANSWER = bytes((0x92, STOPPED))


class Line:
    """Frames to and from the parent."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._poll = select.poll()
        self._poll.register(_LINE, select.POLLIN)

    def send(self, frame: bytes) -> None:
        left = memoryview(LENGTH.pack(len(frame)) + frame)
        while left:
            left = left[os.write(_LINE, left) :]

    def receive(self) -> bytes:
        return self._exactly(*LENGTH.unpack(self._exactly(LENGTH.size)))

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            # A fork of the parent may keep the line open after the parent's end.
            while not self._poll.poll(LOOK_FOR_PARENT_MS):
                if os.getppid() != self._parent:
                    os._exit(0)
            some = os.read(_LINE, min(count - len(received), 1 << 18))
            if not some:
                os._exit(0)
            received += some
        return bytes(received)


class Script(NamedTuple):
    """A script that was loaded. `call` takes a packed message and the time, and gives an encoded answer; with
    False, where the last one was seen.

    Lua takes a string from here where it cannot raise an error: without memory for it the process would end,
    or stand still. So there must be room before.
    """

    hook: bytes
    call: Callable[[bytes | bool | None, float], bytes]
    lua: Any
    most_bytes: int

    def has_room(self, size: int) -> bool:
        return bool(self.lua.get_memory_used() + size + SPARE_BYTES <= self.most_bytes)

    def make_room(self, size: int) -> None:
        self.lua.execute(COLLECT)
        if not self.has_room(size):
            raise MemoryError


class Child:
    """The scripts that were loaded, each in a Lua state of its own."""

    def __init__(self, line: Line, lua: Any, sandbox: bytes, limit_ms: int, memory_bytes: int) -> None:
        self._line = line
        self._lua = lua
        self._sandbox = sandbox
        self._limit_ms = limit_ms
        self._memory_bytes = memory_bytes
        self._scripts: dict[int, Script] = {}
        self._batch = 0
        #: State values that scripts have asked for in this batch, or what is wrong with them.
        self._known: dict[bytes, tuple[bytes | None, bytes | None]] = {}
        #: The one that is run.
        self._script: Script

    def serve(self) -> None:
        while True:
            frame = self._line.receive()
            if frame[:1] == LOAD:
                self._line.send(self._load(frame[1:]))
            else:
                self._line.send(self._run(frame[1:]))

    def _load(self, body: bytes) -> bytes:
        number, hook_bytes, queue_bytes = LOAD_HEAD.unpack_from(body)
        names_end = LOAD_HEAD.size + hook_bytes + queue_bytes
        hook = body[LOAD_HEAD.size : LOAD_HEAD.size + hook_bytes]
        queue, source = body[LOAD_HEAD.size + hook_bytes : names_end], body[names_end:]
        self._scripts.pop(number, None)
        if len(self._scripts) >= MOST_SCRIPTS:
            del self._scripts[next(iter(self._scripts))]
        self._arm()
        try:
            answer = self._loaded(number, hook, queue, source)
        except MemoryError:
            answer = _answer(FAILED, hook + b": the script alone takes more memory than it may use")
        finally:
            self._disarm()
        return _answers([answer])

    def _loaded(self, number: int, hook: bytes, queue: bytes, source: bytes) -> bytes:
        lua = self._lua.LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
            attribute_filter=_refuse_attribute,
            max_memory=0,
        )
        # Nothing has a limit before one is set: the script's own text has the same as its calls.
        lua.set_max_memory(lua.get_memory_used() + self._memory_bytes + 2 * len(self._sandbox))
        arguments = (hook, source, queue, self._limit_ms, self._memory_bytes >> 10, self._ask)
        made = lua.execute(self._sandbox, *arguments)
        if isinstance(made, tuple):
            return _answer(FAILED, bytes(made[1])[:500])
        lua.execute(COLLECT)
        most_bytes = lua.get_memory_used() + self._memory_bytes
        lua.set_max_memory(most_bytes)
        self._script = Script(hook, made, lua, most_bytes)
        answer: bytes = made(None, 0.0)
        self._scripts[number] = self._script
        return answer

    def _run(self, body: bytes) -> bytes:
        number, batch, now_s, count = RUN_HEAD.unpack_from(body)
        script = self._scripts.pop(number, None)
        if script is None:
            return UNKNOWN
        self._scripts[number] = script  # The last one run.
        if batch != self._batch:
            self._batch = batch
            self._known.clear()
        messages = _parts(body, RUN_HEAD.size, count)
        self._arm()
        try:
            return _answers(self._slice(script, messages, now_s))
        except MemoryError:
            # Outside of the script's own calls: its Lua state is made anew, with this message alone.
            del self._scripts[number]
            if count > 1:
                return UNKNOWN
            return _answers([_answer(FAILED, script.hook + b": no memory left for its message")])
        finally:
            self._disarm()

    def _slice(self, script: Script, messages: list[bytes], now_s: float) -> list[bytes]:
        """Answers to as many as there is time for; the others are sent again when it is their turn."""
        limit_s, call, self._script = self._limit_ms / 1000, script.call, script
        began_cpu_s, began_s = time.process_time(), time.monotonic()
        answers: list[bytes] = []
        size, before_s = 0, began_s
        for message in messages:
            if not script.has_room(len(message)):
                script.make_room(len(message))
            answer = call(message, now_s)
            after_s = time.monotonic()
            if after_s - before_s > limit_s and answer[:2] != _STOPPED_ANSWER:
                # It was late in a library function, unless the machine was: what others had in this slice is
                # not more than the time that passed until this one.
                used_s = time.process_time() - began_cpu_s - (before_s - began_s)
                if used_s > limit_s:
                    answer = _answer(STOPPED, b"%s: stopped after %d ms" % (call(False, 0.0), self._limit_ms))
            answers.append(answer)
            size += len(answer)
            if after_s - began_s >= limit_s or size >= MOST_ANSWERS_BYTES:
                break
            before_s = after_s
        return answers

    def _arm(self) -> None:
        # A call may start when the time of its slice is nearly over. Nothing of Lua handles the signal.
        signal.setitimer(signal.ITIMER_PROF, 2 * self._limit_ms / 1000 + TICK_S)

    def _disarm(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _ask(self, key: bytes) -> tuple[bytes | None, bytes | None, bool]:
        """(value, problem, whether there is no room for either).

        The time that the parent takes is not the script's: it is not processor time.
        """
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            try:
                self._line.send(ASK + key)
                frame = self._line.receive()
            except BaseException:  # noqa: BLE001 (nothing of Python may reach the script, no error either)
                os._exit(1)
            value = frame[1:] if frame[:1] == VALUE else None
            self._known[key] = value, frame[1:] if frame[:1] == BAD_KEY else None
        value, problem = self._known[key]
        if self._script.has_room(len(value or problem or b"")):
            return value, problem, False
        return None, None, True


def _parts(body: bytes, at: int, count: int) -> list[bytes]:
    parts = []
    for _ in range(count):
        (size,) = LENGTH.unpack_from(body, at)
        at += LENGTH.size
        parts.append(body[at : at + size])
        at += size
    return parts


def _answer(code: int, text: bytes) -> bytes:
    text = text.decode(errors="replace").encode()
    return bytes((0x92, code, 0xDB)) + len(text).to_bytes(4, "big") + text


def _answers(answers: list[bytes]) -> bytes:
    return ANSWERS + b"\xdd" + len(answers).to_bytes(4, "big") + b"".join(answers)


def _refuse_attribute(owner: object, name: object, is_setting: bool) -> object:
    raise AttributeError("nothing of Python can be reached")


def _give_up_powers(memory_bytes: int) -> None:
    """What the process never needs again: files, processes, memory without end, more rights."""
    import ctypes
    import resource

    most = OWN_BYTES + MOST_SCRIPTS * memory_bytes
    for name, limit in (
        ("RLIMIT_AS", most),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NPROC", 0),
        ("RLIMIT_NOFILE", 3),
    ):
        try:
            resource.setrlimit(getattr(resource, name), (limit, limit))
        except (AttributeError, OSError, ValueError):
            continue  # Not every system has each of them.
    if sys.platform == "linux":
        no_new_privileges = 38
        ctypes.CDLL(None).prctl(no_new_privileges, 1, 0, 0, 0)


def main(lua_folder: str, sandbox_path: str, limit_ms: str, memory_bytes: str) -> None:
    line = Line()
    try:
        sys.path.append(lua_folder)
        from lupa import lua54  # type: ignore[import-untyped]  # Its types are in no package of its own.

        with open(sandbox_path, "rb") as file:
            sandbox = file.read()
        _give_up_powers(int(memory_bytes))
        child = Child(line, lua54, sandbox, int(limit_ms), int(memory_bytes))
    except Exception as error:  # noqa: BLE001 (whatever it is, the parent says it)
        line.send(BROKEN + f"{type(error).__name__}: {error}".encode(errors="replace"))
        return
    line.send(READY)
    child.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
