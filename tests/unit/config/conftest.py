"""Fixtures: a file that is read, and the text of a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import config
from penstock.config import Config
from penstock.errors import InvalidConfig
from tests.unit.config.reading import HOME, Read, Refuse


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str | bytes, **environ: str) -> Config:
        file = tmp_path / "penstock.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config.load(file, HOME | environ)

    return read


@pytest.fixture
def refusal(read: Read, tmp_path: Path) -> Refuse:
    """The message of a refusal, without the name of the file that every one of them starts with."""

    def refusal(text: str | bytes, **environ: str) -> str:
        with pytest.raises(InvalidConfig) as caught:
            read(text, **environ)
        return str(caught.value).removeprefix(str(tmp_path / "penstock.yaml")).removeprefix(": ").strip()

    return refusal
