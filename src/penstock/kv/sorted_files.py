"""Tables that were made beside a store are taken in by it as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.kv.damage import second_name


def take_in(driver: Any, family: Any, paths: Sequence[str]) -> None:
    """By second names, which RocksDB takes over: nothing is copied, and the files stay where they are."""
    taken = [Path(f"{path}.taken") for path in paths]
    options = driver.IngestExternalFileOptions()
    options.set_move_files(True)
    try:
        for name, other in zip(paths, taken, strict=True):
            other.unlink(missing_ok=True)
            second_name(Path(name), other)
        family.ingest_external_file([str(other) for other in taken], options)
    finally:
        for other in taken:
            other.unlink(missing_ok=True)
