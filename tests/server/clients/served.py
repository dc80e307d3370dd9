"""A store of its own behind `penstock serve`, with a key that AWS's clients sign with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.server.credentials import hash_of
from tests.server.processes import Served, serving

ACCESS_KEY = "AKIDEXAMPLE"
SECRET = "a-secret-of-enough-letters"
TOKEN = "psk_" + "a1" * 32


@contextmanager
def signed_server(folder: Path, *arguments: str) -> Iterator[Served]:
    """Whoever signs with the key, or shows the token, may do everything, and nobody else anything."""
    entry = {
        "aws_access_key": ACCESS_KEY,
        "aws_secret": SECRET,
        "token_sha256": hash_of(TOKEN),
        "grants": {"*": ["admin"]},
    }
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": {"client": entry}}))
    keys.chmod(0o600)
    with serving(folder, "--credentials", str(keys), "--log", "requests.log", *arguments) as server:
        yield server


def environment(**more: str) -> dict[str, str]:
    """What AWS's clients read their credentials from; nothing of who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    ours = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return {**kept, **ours, **more}
