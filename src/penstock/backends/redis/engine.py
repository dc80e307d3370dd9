"""What every part of the backend stands on: the server, the time, ids, and queues as last seen."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.backends.redis.connecting import Arg, Script, Server, pairs
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.records import StateRecord, decode_state
from penstock.backends.redis.scripts import script
from penstock.backends.redis.seals import BODIES, QUEUES, REASONS, Seals
from penstock.clock import Clock, SystemClock
from penstock.codec.sealed import SEALED_VERSION, not_sealed, refuse_sealed
from penstock.errors import (
    BackendUnavailable,
    DecryptFailed,
    InvalidConfig,
    PenstockError,
    QueueNotFound,
    StorageCorrupt,
    StorageError,
)
from penstock.ids import IdGenerator
from penstock.message import format_id
from penstock.settings import QueueSettings

T = TypeVar("T")

NOT_FOUND, CHANGED, DONE, MORE = -1, -2, 0, 1
#: Scripts that change messages: what they did is not done again.
CHANGING = frozenset(
    (
        *("enqueue", "replace", "lease", "ack", "extend", "settle", "transfer", "purge", "revive", "restore"),
        *("depart", "departed", "arrive", "arrived"),
    )
)
#: Scripts that are handed the lines of all groups of the last queue, behind the others' keys.
FANNING = frozenset(("enqueue", "replace", "transfer", "arrive", "restore", "audit", "sweep"))
SERVERS_TIME = -1
ROW_VERSION = b"\x01"
_SEALED = bytes((SEALED_VERSION,))
#: Reasons that scripts on the server give: they have no key, and nothing secret to say.
OWN_REASONS = frozenset(
    (b"", b"the body is missing", b"the record was missing", b"the body does not decode", b"counted anew")
)
#: Times that a call is begun anew because the queue was changed meanwhile.
MOST_CHANGES = 100
#: So many of them without a pause before it.
AT_ONCE = 3
PATIENCE_S = 0.05
#: Where the backend is to compress, payloads larger than this: smaller ones hardly shrink.
COMPRESS_OVER_BYTES = 512


#: One item for each fork since the first process: asking the kernel who one is, each time, is dear.
_forks: list[None] = []
os.register_at_fork(after_in_child=lambda: _forks.append(None))


#: Of a group: all there, being given what waits in the queue, being dropped.
WHOLE, JOINING, LEAVING = 0, 1, 2
#: Between a queue and a group, in what names a group's line: no name has it.
BETWEEN = "\0"


class GroupRow(msgspec.Struct, array_like=True, frozen=True):
    """A consumer group of a queue. The first has the queue's own line, each further one a line of its own."""

    name: str
    #: Part of its receipts: the own line's is the queue's.
    number: int
    stage: int = WHOLE


class QueueRow(msgspec.Struct, array_like=True, frozen=True):
    """A queue as the catalogue has it. `number` is of this queue alone, `changed` of these settings."""

    number: int
    changed: int
    settings: QueueSettings
    created_us: int
    #: Those who lease; the own line is of the one that did so first. Streams alone have any.
    groups: tuple[GroupRow, ...] = ()
    #: The name that the queue's stream was given.
    stream: str = ""


class Known(msgspec.Struct, frozen=True):
    """A queue's line and its keys."""

    name: str
    number: int
    changed: int
    settings: QueueSettings
    keys: tuple[bytes, ...]
    #: Larger payloads are compressed: as the queue says, else as the backend does.
    compress_over_bytes: int | None
    #: The consumer group whose line it is; '' if nobody has leased, and where there are none.
    group: str = ""
    #: The queue's groups, and of its own line what new messages go to besides.
    groups: tuple[GroupRow, ...] = ()
    views: tuple[bytes, ...] = ()
    #: Of its own line, too: keys of groups that are being dropped, which still hold entries.
    leaving: tuple[bytes, ...] = ()
    #: What it was asked for by: a queue's name, or that and a group's.
    address: str = ""

    @property
    def is_view(self) -> bool:
        """Whether it is not the queue's own line."""
        return bool(self.groups) and self.number != self.groups[0].number

    @property
    def further_lines(self) -> list[str]:
        """Addresses of the lines that the queue has besides its own."""
        return [self.name + BETWEEN + one.name for one in self.groups[1:] if one.stage != LEAVING]

    @property
    def seal_start(self) -> bytes:
        """What values are bound to: the queue's number, in all of its lines."""
        return (self.groups[0].number if self.groups else self.number).to_bytes(4, "big")

    @property
    def token_start(self) -> bytes:
        return self.number.to_bytes(4, "big")


def _is_secret(row: QueueRow) -> bool:
    settings = row.settings
    return settings.on_enqueue is not None or settings.on_failure is not None or bool(settings.annotations)


def is_sealed_text(raw: bytes) -> bool:
    """Whether a text is sealed: a length comes second, which no UTF-8 has after this first byte."""
    return raw[:1] == _SEALED and raw[1:2] < b"\x80"


class QueueChanged(Exception):
    """The queue is not what the caller thought."""


_decode_row = msgspec.msgpack.Decoder(QueueRow).decode


def decode_row(raw: bytes) -> QueueRow:
    try:
        if raw[:1] != ROW_VERSION:
            raise StorageCorrupt(f"row of a queue has version {raw[:1].hex()}; this Penstock reads 01")
        return _decode_row(raw[1:])
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"row of a queue does not decode: {error}") from error


def encode_row(row: QueueRow) -> bytes:
    return ROW_VERSION + msgspec.msgpack.encode(row)


class Engine:
    """One store on a server."""

    def __init__(
        self, server: Server, keys: Keys, seals: Seals, clock: Clock | None, rng: random.Random | None
    ) -> None:
        self.server = server
        self.keys = keys
        self.seals = seals
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()
        #: Clients' clocks need not agree: only a clock of the caller's own counts instead of the server's.
        self.by_server = isinstance(self.clock, SystemClock)
        self.closed = threading.Event()
        self.lock = threading.Lock()
        opening = int(server.command("HINCRBY", keys.store, "openings", 1))
        self._ids = IdGenerator(self.rng, opening)
        self._known: dict[str, Known] = {}
        self._calls = itertools.count()
        self._caller = os.urandom(8)
        self._acts = _Acts()
        #: Carries out changes of queues that someone else began: of a cluster.
        self.go_on: Callable[[], object] = lambda: None
        self._pid, self._forks = os.getpid(), len(_forks)

    # -- time and ids

    def now_us(self) -> int:
        if self.by_server:
            seconds, micros = self.server.command("TIME")
            return int(seconds) * 1_000_000 + int(micros)
        return self.clock.now_ns() // 1000

    def check_process(self) -> None:
        """Raise in a fork: its ids and calls would be those of its parent, and be taken for them."""
        if self._forks != len(_forks):
            raise StorageError(f"the store was opened in process {self._pid}; open it anew in this one")

    def new_ids(self, count: int) -> list[bytes]:
        self.check_process()
        with self.lock:
            high, _, low = self._ids.take(count, self.clock.now_ns())
        return [high + number.to_bytes(6, "big") for number in range(low, low + count)]

    def head(self, group: str = "") -> list[Arg]:
        """What every script is told first."""
        self.check_process()
        time = SERVERS_TIME if self.by_server else self.clock.now_ns() // 1000
        return [time, self._caller + next(self._calls).to_bytes(8, "big") + b"0" + group.encode()]

    # -- queues

    def queue(self, name: str) -> Known:
        """As last seen: scripts refuse to run on settings that are not the queue's any more."""
        known = self._known.get(name) if isinstance(name, str) else None
        if known is None:
            known = self.load(name)
            if known is None:
                raise QueueNotFound(name)
        return known

    def load(self, name: str) -> Known | None:
        """By a queue's name, or by that of a line; what it is now."""
        try:
            queue = name.partition(BETWEEN)[0]
            raw = self.server.command("HGET", self.keys.queues, queue.encode())
        except (AttributeError, UnicodeEncodeError):  # No name at all.
            return None
        if raw is None:
            self._known.pop(name, None)
            return None
        row = self.decoded_row(queue, raw)
        # After the row: whoever brings another key lists it before it changes the queues.
        self.seals.look()
        return self._seen(name, row)

    def all_queues(self) -> dict[str, QueueRow]:
        """By name; without those whose rows are damaged, which keep nobody from the others."""
        return self.rows()[0]

    def every_queue(self) -> dict[str, QueueRow]:
        """The same, where none may be left out: a damaged row is an error."""
        rows, damaged = self.rows()
        for name, error in damaged.items():
            if isinstance(error, InvalidConfig):
                raise error
            raise StorageCorrupt(f"queue {name!r} is damaged: {error}; run check with repair first")
        return rows

    def rows(self) -> tuple[dict[str, QueueRow], dict[str, StorageCorrupt | InvalidConfig]]:
        """The catalogue: queues by name, and what is wrong with the rows of others.

        `InvalidConfig`: they are sound, but their streams are not where our settings have them.
        """
        sound: dict[str, QueueRow] = {}
        damaged: dict[str, StorageCorrupt | InvalidConfig] = {}
        for raw_name, raw in sorted(pairs(self.server.command("HGETALL", self.keys.queues))):
            name = raw_name.decode(errors="replace")
            try:
                if name.encode() != raw_name:
                    raise StorageCorrupt("the name of a queue is not UTF-8")
                row = self.decoded_row(name, raw)
                self._check_stream(name, row)
                sound[name] = row
            except (StorageCorrupt, InvalidConfig) as error:
                damaged[name] = error
        self.seals.look()
        return sound, damaged

    def decoded_row(self, name: str, raw: bytes) -> QueueRow:
        if raw[:1] == _SEALED:
            raw = self.seals.open(QUEUES, name.encode(), raw)
            refuse_sealed(raw, f"row of queue {name!r}")
            return decode_row(raw)
        row = decode_row(raw)
        if _is_secret(row) and not self.seals.takes_plain:
            refuse_sealed(not_sealed(raw), f"row of queue {name!r}")
        return row

    def encoded_row(self, name: str, row: QueueRow) -> bytes:
        """Sealed, if the queue has a script."""
        raw = encode_row(row)
        return self.seals.seal(QUEUES, name.encode(), raw) if _is_secret(row) else raw

    def known(self, name: str, row: QueueRow) -> Known:
        known = self._known.get(name)
        if known is None or known.changed != row.changed:
            known = self._own_line(name, row)
        return known

    def _seen(self, address: str, row: QueueRow) -> Known | None:
        queue, between, group = address.partition(BETWEEN)
        known = self._own_line(queue, row)
        if between and known.group != group:
            number = next((one.number for one in row.groups[1:] if one.name == group), None)
            if number is None:
                return None
            keys = self.keys.queue(queue, group)
            known = msgspec.structs.replace(
                known, number=number, keys=keys, group=group, views=(), leaving=()
            )
        known = msgspec.structs.replace(known, address=address)
        self._known[address] = known
        return known

    def _own_line(self, name: str, row: QueueRow) -> Known:
        over = row.settings.compress_over_bytes
        if over is None and self.server.settings.compression:
            over = COMPRESS_OVER_BYTES
        self._check_stream(name, row)
        group, keys = row.groups[0].name if row.groups else "", self.keys.queue(name)
        lines: tuple[list[bytes], list[bytes]] = [], []
        for one in row.groups[1:]:
            lines[one.stage == LEAVING].extend(self.keys.queue(name, one.name))
        views, leaving = map(tuple, lines)
        about = row.number, row.changed, row.settings, keys, over, group, row.groups, views, leaving
        known = Known(name, *about, name)
        self._known[name] = known
        return known

    def _check_stream(self, name: str, row: QueueRow) -> None:
        wanted = self.keys.stream_name(name)
        if row.stream != wanted:
            raise InvalidConfig(
                f"queue {name!r}: stream_name is {wanted!r:.80}, but it was created with {row.stream!r:.80}; "
                "configure that, or create another queue and move to it"
            )

    def forget(self, *names: str) -> None:
        """A queue, and all lines of it."""
        for name in names:
            queue = name.partition(BETWEEN)[0]
            for address in [queue, *(one for one in list(self._known) if one.startswith(queue + BETWEEN))]:
                self._known.pop(address, None)

    def with_queue(self, name: str, act: Callable[[Known], T], attempts: int | None = None) -> T:
        """Act on a queue; anew where it turns out to be changed before anything was done.

        With `AT_ONCE` attempts, nothing is waited for.
        """
        for attempt in range(attempts or MOST_CHANGES):
            self.patience(attempt)
            try:
                return self.once(name, act)
            except QueueChanged as changed:
                # Looked at again behind the pause, not before: what changes often would be old by then.
                self.forget(name, *changed.args)
        raise restless(name)

    def once(self, name: str, act: Callable[[Known], T]) -> T:
        """Act on a queue as it is known; `QueueChanged` if it is not so, and nothing was done yet."""
        outer, self._acts.has_changed = self._acts.has_changed, False
        try:
            return act(self.queue(name))
        finally:
            self._acts.has_changed = outer

    def patience(self, attempt: int) -> None:
        if attempt >= AT_ONCE:
            self.closed.wait(PATIENCE_S)  # A repair is at it, or a transfer.
        if attempt > 2 * AT_ONCE:
            self.go_on()

    def _as_they_are(self, queues: Sequence[Known]) -> list[Known]:
        """The same lines as they are by now; `QueueChanged` if one is another queue's."""
        self.forget(*(q.address for q in queues))
        now = [self.load(q.address) for q in queues]
        out = [new for q, new in zip(queues, now, strict=True) if new and new.number == q.number]
        if len(out) < len(queues):
            raise QueueChanged(*(q.address for q in queues))
        return out

    # -- what is secret of a message

    def sealed_body(self, q: Known, raw_id: bytes, body: bytes) -> bytes:
        return self.seals.seal(BODIES, q.seal_start + raw_id, body)

    def opened_body(self, q: Known, raw_id: bytes, raw: bytes) -> bytes:
        """One that does not open as it is stored: what decodes it refuses it."""
        return self.seals.open(BODIES, q.seal_start + raw_id, raw)

    def sealed_reason(self, q: Known, raw_id: bytes, reason: str) -> bytes:
        raw = reason.encode()
        return self.seals.seal(REASONS, q.seal_start + raw_id, raw) if raw else raw

    def opened_reason(self, q: Known, raw_id: bytes, raw: bytes) -> str:
        """The text of a reason, in a record or in an event. Text never begins as what is sealed does."""
        if raw in OWN_REASONS or (self.seals.takes_plain and not is_sealed_text(raw)):
            return raw.decode()
        plain = self.seals.open(REASONS, q.seal_start + raw_id, raw)
        if plain is raw or plain[:2] == _SEALED + b"\0":
            refuse_sealed(plain, f"reason of message {format_id(raw_id)}")
        return plain.decode()

    def record(self, q: Known, raw_id: bytes, raw: bytes) -> StateRecord:
        return decode_state(raw, lambda reason: self.opened_reason(q, raw_id, reason))

    def record_to_settle(self, q: Known, raw_id: bytes, raw: bytes) -> StateRecord:
        """The same; a reason that does not open is left out, for it must not keep a queue from going on."""

        def read(reason: bytes) -> str:
            try:
                return self.opened_reason(q, raw_id, reason)
            except DecryptFailed:
                return ""

        return decode_state(raw, read)

    # -- scripts

    def script(self, name: str) -> Script:
        return script(name, self.keys.store_kind)

    def run(self, name: str, queues: Sequence[Known], *args: Arg) -> list[Any]:
        """A script of one queue or of two; `QueueChanged` if one is not as it is known.

        An act that has changed something goes on with what it began: begun anew, it would do that again.
        """
        return self.run_sealed(name, queues, lambda: args)

    def run_sealed(self, name: str, queues: Sequence[Known], args: Callable[[], Sequence[Arg]]) -> list[Any]:
        """The same with arguments that are sealed: anew, where the list of keys is another meanwhile."""
        attempt, given = 0, args()
        while attempt < MOST_CHANGES:
            keys = queues[0].keys if len(queues) == 1 else (*queues[0].keys, *queues[1].keys)
            if name in FANNING:
                keys += queues[-1].views
            if name == "audit":
                keys += queues[-1].leaving
            sent = [*self.head(queues[0].group), *(q.changed for q in queues), *given]
            reply: list[Any] = self.server.run(self.script(name), keys, sent)
            if reply[0] == MORE:
                continue  # Time has more to do than fits into one call.
            if reply[0] not in (NOT_FOUND, CHANGED):
                self._acts.has_changed = self._acts.has_changed or name in CHANGING
                return reply
            if not self._acts.has_changed:
                raise QueueChanged(*(q.address for q in queues))
            self.patience(attempt)
            queues = self._as_they_are(queues)
            given = args()
            attempt += 1
        raise restless(queues[0].name)

    def run_each(self, name: str, queues: Sequence[Known]) -> list[list[Any] | PenstockError | None]:
        """A script that changes no message, on each of many queues, in few round trips.

        An error is the answer of its queue alone; None is that of one that is not as it is known.
        """
        answers: list[list[Any] | PenstockError | None] = [None] * len(queues)
        asked = list(range(len(queues)))
        while asked:
            sent = [
                (self.script(name), q.keys, [*self.head(q.group), q.changed])
                for q in (queues[at] for at in asked)
            ]
            again = []
            for at, reply in zip(asked, self.server.run_many(sent), strict=True):
                if isinstance(reply, PenstockError):
                    answers[at] = reply
                elif reply[0] == MORE:
                    again.append(at)
                elif reply[0] not in (NOT_FOUND, CHANGED):
                    answers[at] = reply
            asked = again
        return answers


class _Acts(threading.local):
    """Of each thread: whether what it is at has changed messages already."""

    has_changed = False


def restless(name: str) -> BackendUnavailable:
    return BackendUnavailable(f"queue {name!r} is being repaired, or changes all the time; try again")
