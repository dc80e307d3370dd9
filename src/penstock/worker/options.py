"""A worker's options, checked before anything starts, and the handler that they name."""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import msgspec

from penstock.errors import InvalidConfig, InvalidMessage
from penstock.message import checked_name
from penstock.settings import MAX_DURATION_S

Mode = Literal["threads", "processes", "asyncio"]

MAX_CONCURRENCY = 10_000
MAX_BATCH = 100_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker was told, in its final form."""

    queues: tuple[str, ...]
    handler: Callable[..., Any] | None
    #: `module:function`; in a processes worker the function is imported by the children alone.
    reference: str
    mode: Mode
    concurrency: int
    batch_size: int
    lease_s: float | None
    time_limit_s: float | None
    stop_timeout_s: float
    consumer: str
    #: The consumer group that it leases in; None for the usual one.
    group: str | None

    @property
    def batch(self) -> bool:
        """Whether the handler gets lists."""
        return self.batch_size > 1


def checked_options(
    queues: str | list[str] | tuple[str, ...],
    handler: Callable[..., Any] | str,
    mode: str | None,
    *,
    concurrency: int,
    batch_size: int,
    lease_s: float | None,
    time_limit_s: float | None,
    stop_timeout_s: float,
    consumer: str | None,
    group: str | None,
) -> Options:
    """What a worker is told, or `InvalidConfig` naming the option and what is accepted."""
    function, reference, its_mode = _checked_handler(handler, mode)
    return Options(
        queues=_checked_queues(queues),
        handler=function,
        reference=reference,
        mode=its_mode,
        concurrency=_checked_count(concurrency, "concurrency", MAX_CONCURRENCY),
        batch_size=_checked_count(batch_size, "batch_size", MAX_BATCH),
        lease_s=None if lease_s is None else _checked_seconds(lease_s, "lease_s", 0.001),
        time_limit_s=None if time_limit_s is None else _checked_seconds(time_limit_s, "time_limit_s", 0.001),
        stop_timeout_s=_checked_seconds(stop_timeout_s, "stop_timeout_s", 0.0),
        consumer=_checked_consumer(consumer),
        group=None if group is None else _checked_named(group, "group"),
    )


def _checked_queues(queues: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidConfig("queues is the name of a queue, or a list of names with at least one in it")
    return tuple(dict.fromkeys(names))


def _checked_consumer(consumer: str | None) -> str:
    return _checked_named(consumer or f"worker-{socket.gethostname()}-{os.getpid()}", "consumer")


def _checked_named(name: str, what: str) -> str:
    try:
        checked_name(name, what)
    except InvalidMessage as error:
        raise InvalidConfig(str(error)) from None
    return name


def _checked_count(value: int, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidConfig(f"{name} is {value!r:.40}; accepted: whole numbers from 1 to {most}")
    return value


def _checked_seconds(value: float, name: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MAX_DURATION_S:
        raise InvalidConfig(f"{name} is {value!r:.40}; accepted: {least} to {MAX_DURATION_S:.0f} seconds")
    return float(value)


def _checked_handler(
    handler: Callable[..., Any] | str, mode: str | None
) -> tuple[Callable[..., Any] | None, str, Mode]:
    """The function, if this process is to call it; its reference; and the mode that it runs in."""
    if mode is not None and mode not in get_args(Mode):
        raise InvalidConfig(f"mode is {mode!r:.40}; accepted: {', '.join(get_args(Mode))}")
    if isinstance(handler, str):
        if mode == "processes":
            _split(handler)
            return None, handler, "processes"
        handler = load(handler)
    if not callable(handler):
        raise InvalidConfig(f"the handler must be a function or 'module:function', not {handler!r:.60}")
    coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 (an object whose call is a coroutine function)
    )
    if mode is None:
        mode = "asyncio" if coroutine else "threads"
    if coroutine != (mode == "asyncio"):
        raise InvalidConfig(
            f"mode {mode!r} runs {'async def' if mode == 'asyncio' else 'plain'} functions, "
            f"and the handler is {'an async def' if coroutine else 'a plain'} one"
        )
    if mode == "processes":
        return None, reference_to(handler), "processes"
    return handler, getattr(handler, "__qualname__", type(handler).__name__), cast(Mode, mode)


def load(reference: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module_name, path = _split(reference)
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(f"handler {reference!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # Whatever the module does when it is imported.
        raise InvalidConfig(
            f"handler {reference!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise InvalidConfig(f"handler {reference!r} is a {type(found).__name__}, not a function")
    return cast("Callable[..., Any]", found)


def reference_to(handler: Callable[..., Any]) -> str:
    """`module:function`, by which another process finds the same function."""
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    found: Any = sys.modules.get(module or "")
    for part in (name or "").split("."):
        found = getattr(found, part, None)
    if module == "__main__":
        # Under `python -m` it has another name, by which it can be imported; a script has none.
        module = getattr(sys.modules["__main__"].__spec__, "name", None)
    if module is None or found is not handler:
        raise InvalidConfig(
            f"handler {name or type(handler).__name__!r} cannot be imported by another process; "
            "put it at the top level of a module of its own, or use mode='threads'"
        )
    return f"{module}:{name}"


def _split(reference: str) -> tuple[str, str]:
    module, colon, path = reference.partition(":")
    if not (module and colon and path):
        raise InvalidConfig(f"handler {reference!r} is not of the form 'module:function'")
    return module, path
