"""A store in a folder of its own, and the command line called in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Penstock
from tests.cli.calling import Cli


@pytest.fixture(autouse=True, scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that the tests start compile the sources once, not each of them again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, without a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    # Nothing here is about power cuts, and syncs are what short commands spend their time on.
    monkeypatch.setenv("PENSTOCK_STORAGE_DURABILITY", "os")
    return tmp_path


@pytest.fixture
def bare(folder: Path) -> Cli:
    """The command line where there is no store."""
    return Cli(folder)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the queue `emails`; tests work on copies of it."""
    path = tmp_path_factory.mktemp("template") / "store"
    with penstock.open(path) as ps:
        ps.create_queue("emails")
    return path


@pytest.fixture
def cli(bare: Cli, template: Path) -> Cli:
    """The command line in a folder whose store has the queue `emails`."""
    shutil.copytree(template, bare.store)
    return bare


@pytest.fixture
def memory() -> Iterator[Penstock]:
    with penstock.open("memory:") as ps:
        yield ps
