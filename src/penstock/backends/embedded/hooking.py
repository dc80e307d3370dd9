"""The scripts of a store's queues: checked when they are set, run before anything is locked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.queue_state import QueueState
from penstock.config import HookSettings
from penstock.hooks.scripts import Script, Scripts, Verdict
from penstock.hooks.wire import HOOKS, Failure
from penstock.message import NewMessage
from penstock.settings import QueueSettings


class Hooking:
    """Which scripts a store's queues have, and what they say. Nothing here is called with the lock held."""

    def __init__(
        self, engine: Engine, settings: HookSettings, read_state: Callable[[str], bytes | None]
    ) -> None:
        self._engine = engine
        self.scripts = Scripts(settings, engine.clock, read_state)

    def check(self, wanted: Iterable[QueueSettings]) -> None:
        """Refuse a script that cannot be used; one that a queue has already was checked before."""
        self._engine.check_usable()  # A forked process has a copy of all this, and of the line to the helper.
        for settings in wanted:
            q = self._engine.queues.get(settings.name)
            for hook in HOOKS:
                text = getattr(settings, hook)
                if text is not None and (q is None or getattr(q.settings, hook) != text):
                    self.scripts.check(Script(settings.name, hook, text))

    def enqueued(self, queue: str, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        """The messages as they are to be stored; those that are refused say so when their turn comes."""
        q = self._engine.queues.get(queue) if isinstance(queue, str) else None
        if q is None or q.settings.on_enqueue is None:
            return messages
        self._engine.check_usable()
        script = _script(q, "on_enqueue", q.settings.on_enqueue)
        return self.scripts.enqueue(script, messages)  # type: ignore[return-value]

    def failed(self, q: QueueState, text: str, failures: Sequence[Failure]) -> list[Verdict | None]:
        return self.scripts.fail(_script(q, "on_failure", text), failures)

    def reasons(self) -> list[str]:
        """What is wrong with scripts."""
        now_ns = self._engine.clock.now_ns()
        with self._engine.lock:
            scripts = [script for q in self._engine.queues.values() for script in q.scripts.values()]
        return [complaint for script in scripts if (complaint := script.complaint(now_ns))]


def _script(q: QueueState, hook: str, text: str) -> Script:
    """The queue's script; another one, with a record of its own, once it was changed."""
    script = q.scripts.get(hook)
    if script is None or script.source.text != text:
        script = q.scripts[hook] = Script(q.name, hook, text)
    return script
