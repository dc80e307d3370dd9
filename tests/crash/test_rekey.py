"""A process that rekeys its store under load is killed again and again: nothing is lost, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event

import pytest

import penstock
from penstock import KeyMissing, NewMessage
from penstock.config import Config, EncryptionSettings, StorageSettings
from tests.crash.clocks import now_clock
from tests.crash.rig import ROOT, campaigns

MARKER = b"marker of plain text"
BASE = 4000
TARGETS = ("main", "new", None)
KEYS = {"main": bytes(32), "new": bytes(range(32))}


class Only:
    """One key."""

    def __init__(self, key_id: str | None) -> None:
        self._key_id = key_id

    def key(self, key_id: str, /) -> bytes | None:
        return KEYS[key_id] if key_id == self._key_id else None


class Both:
    def key(self, key_id: str, /) -> bytes | None:
        return KEYS.get(key_id)


@dataclass
class Rekeying:
    """One store, the key that it is on its way to, and the messages that it must have."""

    seed: int
    folder: Path
    target: str | None = None
    kills: int = 0
    finished: int = 0
    needed: dict[str, bytes] = field(default_factory=dict)
    in_doubt: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.store = self.folder / "store"
        with self.open(None) as system:
            q = system.create_queue("q", max_attempts=1_000_000, dedup_window_s=86_400)
            results = q.enqueue_many([NewMessage(MARKER + b" %d" % n) for n in range(BASE)])
        self.needed = {str(result.id): MARKER + b" %d" % n for n, result in enumerate(results)}

    def open(self, key_id: str | None, keys: penstock.KeyProvider | None = None) -> penstock.Penstock:
        encryption = EncryptionSettings(enabled=key_id is not None, key_id=key_id or "main")
        settings = StorageSettings(path=str(self.store), durability="os", encryption=encryption)
        return penstock.open(Config(source="", default=settings), keys=keys or Both(), clock=now_clock())

    def kill(self) -> None:
        """Let a process rekey, and kill it somewhere."""
        log = self.folder / f"log-{self.kills}"
        self.kills += 1
        environ = {
            **os.environ,
            **{f"PENSTOCK_KEY_{name.upper()}": key.hex() for name, key in KEYS.items()},
            "PENSTOCK_STORAGE_ENCRYPTION_ENABLED": str(self.target is not None).lower(),
            "PENSTOCK_STORAGE_ENCRYPTION_KEY_ID": self.target or "main",
        }
        command = [sys.executable, "-m", "tests.crash.rekeying", str(self.store), str(log)]
        with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"opened\n"
            Event().wait(self.rng.uniform(0, 0.6))
            child.kill()
        assert child.returncode == -signal.SIGKILL, "it ended by itself"
        for line in log.read_text().splitlines():
            what, message_id, payload = line.split(" ", 2)
            if what == "enqueued":
                self.needed[message_id] = payload.encode()
            else:
                self.in_doubt.add(message_id)

    def judge(self) -> None:
        """Reopened, everything is there and sound; half of the time it is brought to its end."""
        with self.open(self.target) as system:
            assert system.check().problems == []
            found = {message.id: message.payload for message in system.queue("q").iter()}
            missing = {i: p for i, p in self.needed.items() if i not in self.in_doubt and found.get(i) != p}
            assert missing == {}, f"{len(missing)} messages are lost or changed"
            if self.rng.random() < 0.5:
                while system.info().default.rekey_from:
                    assert system.sweep(1000)
                assert system.check().problems == []
                self.finished += 1
            done = not system.info().default.rekey_from
            files = [file for file in self.store.iterdir() if file.is_file()]
            in_plain = [file.name for file in files if MARKER in file.read_bytes()]
            assert not (done and self.target) or in_plain == []
        if done:
            self.open(self.target, Only(self.target)).close()
            self.target = self.rng.choice([target for target in TARGETS if target != self.target])
        elif self.rng.random() < 0.2:
            self.target = self.rng.choice(TARGETS)


@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(1, 6), soak=(4, 30)))
def test_a_rekeying_that_is_killed_again_and_again_loses_nothing_and_comes_to_its_end(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rekeying = Rekeying(seed, tmp_path, target="main")
    for _ in range(rounds):
        rekeying.kill()
        rekeying.judge()
    line = f"rekeying seed {seed}: {rekeying.kills} kills, {rekeying.finished} brought to an end by sweeps"
    request.node.user_properties.append(("crash campaign", f"{line}, {len(rekeying.needed)} messages"))
    with rekeying.open("main") as system:
        system.rekey()
        assert system.check().problems == []
    with pytest.raises(KeyMissing):
        rekeying.open("main", Only("new"))
