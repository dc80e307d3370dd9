"""The scripts of a store's queues: checked when they are set, run in this process's helper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from penstock.backends.redis.engine import Engine, Known
from penstock.config import HookSettings
from penstock.hooks.scripts import Script, Scripts, Verdict
from penstock.hooks.wire import HOOKS, Failure
from penstock.message import NewMessage
from penstock.settings import QueueSettings


class Hooking:
    """Which scripts a store's queues have, and what they say."""

    def __init__(
        self, engine: Engine, settings: HookSettings, read_state: Callable[[str], bytes | None]
    ) -> None:
        self._engine = engine
        self.scripts = Scripts(settings, engine.clock, read_state)
        self._known: dict[tuple[str, str], Script] = {}
        self._lock = threading.Lock()

    def check(self, wanted: Iterable[QueueSettings]) -> None:
        """Refuse a script that cannot be used; one that a queue has already was checked before."""
        for settings in wanted:
            if settings.on_enqueue is None and settings.on_failure is None:
                continue
            known = self._engine.load(settings.name)
            for hook in HOOKS:
                text = getattr(settings, hook)
                if text is not None and (known is None or getattr(known.settings, hook) != text):
                    self.scripts.check(Script(settings.name, hook, text))

    def enqueued(self, q: Known, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        """The messages as they are to be stored; those that are refused say so when their turn comes."""
        text = q.settings.on_enqueue
        if text is None or not messages:
            return messages
        return self.scripts.enqueue(self._script(q.name, "on_enqueue", text), messages)  # type: ignore[return-value]

    def failed(self, q: Known, failures: Sequence[Failure]) -> list[Verdict | None]:
        text = q.settings.on_failure
        if text is None or not failures:
            return [None] * len(failures)
        return self.scripts.fail(self._script(q.name, "on_failure", text), failures)

    def reasons(self) -> list[str]:
        """What is wrong with scripts."""
        now_ns = self._engine.clock.now_ns()
        with self._lock:
            scripts = list(self._known.values())
        return [complaint for script in scripts if (complaint := script.complaint(now_ns))]

    def close(self) -> None:
        self.scripts.close()

    def _script(self, queue: str, hook: str, text: str) -> Script:
        """The queue's script; another one, with a record of its own, once it was changed."""
        with self._lock:
            script = self._known.get((queue, hook))
            if script is None or script.source.text != text:
                script = self._known[queue, hook] = Script(queue, hook, text)
            return script
