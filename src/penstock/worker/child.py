"""A handler process: imports the handler, runs what it is sent, and ends with its parent."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from penstock.message import Delivery
from penstock.worker.job import Context, running_in
from penstock.worker.options import load
from penstock.worker.reason import bounded
from penstock.worker.verdict import Verdict, verdicts_of
from penstock.worker.wire import Begin, Broken, Finished, Frames, Lost, Ready, Work, encode, to_child

RECEIVED_BYTES = 1 << 16


class Child:
    """The main thread runs handlers, as their libraries may expect; another listens to the parent."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._inbox: queue.SimpleQueue[Begin | Work | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._context: Context | None = None

    def run(self) -> None:
        threading.Thread(target=self._listen, name="penstock-worker-parent", daemon=True).start()
        begin = self._inbox.get()
        if not isinstance(begin, Begin):
            return
        try:
            handler = load(begin.reference)
        except BaseException as error:  # noqa: BLE001 (whatever the import of user code does)
            self._parent.sendall(encode(Broken(bounded(f"{type(error).__name__}: {error}"))))
            return
        self._parent.sendall(encode(Ready()))
        while isinstance(work := self._inbox.get(), Work):
            verdicts = self._call(handler, work.deliveries, begin.batch)
            self._parent.sendall(encode(Finished(verdicts)))

    def _call(
        self, handler: Callable[[Any], object], deliveries: list[Delivery], batch: bool
    ) -> list[Verdict]:
        context = Context(self._stopping)
        self._context = context
        try:
            with running_in(context):
                return verdicts_of(handler, deliveries, batch=batch)
        finally:
            self._context = None

    def _listen(self) -> None:
        frames = Frames()
        # A parent that was killed may leave an error instead of an end: answers that it had not read.
        with contextlib.suppress(ConnectionError):
            while received := self._parent.recv(RECEIVED_BYTES):
                for body in frames.feed(received):
                    self._hear(to_child(body))
        if self._context is not None:
            # The parent is gone, its lease will run out, and another will do this work: all of it ends here.
            os.killpg(0, signal.SIGKILL)
        self._inbox.put(None)

    def _hear(self, frame: object) -> None:
        match frame:
            case Begin() | Work():
                self._inbox.put(frame)
            case Lost(message_id=message_id):
                if (context := self._context) is not None:
                    context.lose(message_id)
            case _:
                self._stopping.set()


def main(descriptor: int) -> None:
    # What a handler starts must not keep the line to the parent open.
    os.set_inheritable(descriptor, False)
    # A terminal and a service manager signal the children too: when they end is their parent's to say.
    # Not SIG_IGN, which the programs that a handler starts would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_it_to_the_parent)
    with socket.socket(fileno=descriptor) as parent:
        Child(parent).run()


def _leave_it_to_the_parent(number: int, frame: object) -> None:
    pass
