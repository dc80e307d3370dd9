"""Connections to a server of the Redis family: the only file that imports redis."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.errors import (
    BackendNotInstalled,
    BackendUnavailable,
    InvalidConfig,
    StorageError,
    StorageFull,
    Unauthorized,
)

Arg = bytes | int | float | str

#: The argument of a script that says whether it is sent again, by its last byte.
CALL_ARG = 1
ATTEMPTS = 3


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is, and what of it is this store's."""

    host: str = "127.0.0.1"
    port: int = 6379
    database: int = 0
    user: str | None = None
    password: str | None = None
    prefix: str = ""
    timeout_s: float = 5.0


def settings_of(url: str) -> RedisSettings:
    """From a URL such as redis+lists://127.0.0.1:6379/0?prefix=app-."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = options.pop("prefix", "")
    if options:
        raise InvalidConfig(f"redis url: unknown option {next(iter(options))!r}; accepted: prefix")
    try:
        database, port = int(parts.path.strip("/") or 0), parts.port or 6379
    except ValueError as error:
        raise InvalidConfig(f"redis url: {error}; the path is the number of a database") from None
    return RedisSettings(
        host=parts.hostname or "127.0.0.1",
        port=port,
        database=database,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        prefix=prefix,
    )


class Script:
    """A Lua text and its SHA-1."""

    def __init__(self, name: str, text: bytes) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def driver() -> Any:
    try:
        import redis
    except ModuleNotFoundError as error:
        raise BackendNotInstalled("redis", "redis") from error
    return redis


@contextmanager
def translated() -> Iterator[None]:
    """Errors of the driver as errors of Penstock's."""
    redis = driver()
    try:
        yield
    except redis.AuthenticationError as error:
        raise Unauthorized(f"redis: {error}") from error
    except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError) as error:
        raise BackendUnavailable(f"redis does not answer: {error}") from error
    except redis.ResponseError as error:
        text = str(error)
        # Scripts pass on what stopped them, on newer servers without its first word.
        if text.startswith(("OOM", "MISCONF")) or "maxmemory" in text:
            raise StorageFull(f"redis: {text}") from error
        if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
            raise Unauthorized(f"redis: {text}") from error
        if text.startswith(("READONLY", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")):
            raise BackendUnavailable(f"redis: {text}") from error
        raise StorageError(f"redis: {text}") from error
    except redis.RedisError as error:
        raise StorageError(f"redis: {error}") from error


class Server:
    """A Redis server that scripts are run on. Safe from any thread."""

    def __init__(self, client: Any, settings: RedisSettings) -> None:
        self._client = client
        self._settings = settings
        self._closed = False
        self._listener: _Listener | None = None
        self._lock = threading.Lock()

    def run(
        self, script: Script, keys: Sequence[bytes], args: Sequence[Arg], *, timeout_s: float | None = None
    ) -> Any:
        redis = driver()
        self._check_open()
        command: list[Arg] = ["EVALSHA", script.sha, len(keys), *keys, *args]
        for attempt in range(ATTEMPTS):
            try:
                with translated():
                    try:
                        return self._client.execute_command(*command)
                    except redis.exceptions.NoScriptError:
                        self._client.execute_command("SCRIPT", "LOAD", script.text)
                        return self._client.execute_command(*command)
            except BackendUnavailable:
                if attempt == ATTEMPTS - 1:
                    raise
                told = args[CALL_ARG]
                if isinstance(told, bytes):
                    command[3 + len(keys) + CALL_ARG] = told[:-1] + b"1"
        raise BackendUnavailable("redis does not answer")

    def run_many(self, calls: Sequence[tuple[Script, Sequence[bytes], Sequence[Arg]]]) -> list[Any]:
        """One pipeline; errors come back as items."""
        redis = driver()
        self._check_open()
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for script, keys, args in calls:
                pipeline.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        for place, (reply, call) in enumerate(zip(replies, calls, strict=True)):
            if isinstance(reply, redis.exceptions.NoScriptError):
                replies[place] = self.run(*call)
        return replies

    def command(self, *args: Arg) -> Any:
        self._check_open()
        with translated():
            return self._client.execute_command(*args)

    def listen(self, channel: bytes, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` when something is published there, and after each reconnection; stops when called."""
        self._check_open()
        with self._lock:
            if self._listener is None:
                self._listener = _Listener(self._client)
            return self._listener.add(channel, told)

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        with suppress(Exception):
            self._client.close()
            self._client.connection_pool.disconnect()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("the store is closed; open it again")


class _Listener:
    """The one connection that is told what others publish."""

    def __init__(self, client: Any) -> None:
        self._pubsub = client.pubsub(ignore_subscribe_messages=False)
        self._told: dict[bytes, list[Callable[[], None]]] = {}
        self._ready: dict[bytes, threading.Event] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, channel: bytes, told: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._told.setdefault(channel, []).append(told)
            ready = self._ready.get(channel)
            if ready is None:
                ready = self._ready[channel] = threading.Event()
                with translated():
                    self._pubsub.subscribe(channel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-listen", daemon=True)
                self._thread.start()
        ready.wait(5.0)

        def stop() -> None:
            with self._lock:
                self._told[channel].remove(told)

        return stop

    def _run(self) -> None:
        while not self._closed:
            try:
                message = self._pubsub.get_message(timeout=1.0)
            except Exception:  # noqa: BLE001 - whatever it is, it is tried again: a lost message is a delay.
                threading.Event().wait(0.05)
                message = None
                for channel in list(self._told):
                    self._tell(channel)
            if message is None:
                continue
            channel = message["channel"]
            if message["type"] == "subscribe" and channel in self._ready:
                self._ready[channel].set()
            self._tell(channel)

    def _tell(self, channel: bytes) -> None:
        with self._lock:
            told = list(self._told.get(channel, ()))
        for one in told:
            one()

    def close(self) -> None:
        self._closed = True
        with suppress(Exception):
            self._pubsub.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)


def connect(settings: RedisSettings) -> Server:
    redis = driver()
    client = redis.Redis(
        host=settings.host,
        port=settings.port,
        db=settings.database,
        username=settings.user,
        password=settings.password,
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        retry=None,
        driver_info=None,
    )
    server = Server(client, settings)
    server.command("PING")
    return server
