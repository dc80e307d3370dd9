"""The description of the interface holds: what schemathesis makes up from it is answered as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest
import schemathesis

import penstock
from penstock.server.rest.openapi import document
from penstock.server.rest.table import TABLE
from tests.server.rest.api import api

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
#: Names that are there, so that half of the requests are about something.
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 404, 405, 406, 409, 413, 415, 431]
[dictionaries.queues]
values = ["q", "other"]
[dictionaries.names]
values = ["c", "k", "t"]
[dictionaries.ids]
values = ["01890000-0000-7000-8000-000000000000"]
[parameters]
"path.queue" = { dictionary = "queues", probability = 0.7 }
"path.cursor" = { dictionary = "names", probability = 0.5 }
"path.key" = { dictionary = "names", probability = 0.5 }
"path.world" = { dictionary = "names", probability = 0.5 }
"path.id" = { dictionary = "ids", probability = 0.7 }
"path.item" = { dictionary = "ids", probability = 0.7 }
"""


def run(folder: Path, phases: str, max_time_s: int, *more: str) -> None:
    (folder / "schemathesis.toml").write_text(CONFIG)
    hooks = Path(__file__).with_name("schemathesis_hooks.py")
    (folder / "hooks.py").write_text(hooks.read_text())
    with penstock.open("memory:") as ps, api(ps) as served:
        for name in ("q", "other"):
            ps.create_queue(name).enqueue(b"{}", fairness_key="k", throttle_keys=["t"])
        ps.queue("q").enqueue(b"", id="01890000-0000-7000-8000-000000000000")
        ps.queue("q").cursor("c")
        ps.state.put("k", b"v")
        ps.throttles.set("t", 1000, 1000)
        command = [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{served.url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--phases", phases, "--max-time", str(max_time_s)),
            *("--request-timeout", "20", "--warnings", "off", "--no-shrink", *more),
        ]
        done = subprocess.run(
            command,
            cwd=folder,
            env={"SCHEMATHESIS_HOOKS": "hooks", "PATH": "/usr/bin:/bin", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max_time_s + 60,
            check=False,
        )
        text = done.stdout.decode()
        assert done.returncode == 0, text[:20_000]
        assert f"Tested: {len(TABLE.routes)}" in text, text[-2000:]
        assert ps.check().ok


def test_the_description_is_one_of_openapi_and_its_types_are_json_schemas() -> None:
    described = document()
    schemathesis.openapi.from_dict(described).validate()
    for schema in described["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_what_is_made_up_from_the_description_is_answered_as_it_says(tmp_path: Path) -> None:
    run(tmp_path, "coverage,fuzzing", 20, "--max-examples", "5", "--seed", "1")


@pytest.mark.soak
def test_the_same_for_longer_and_in_sequences(tmp_path: Path) -> None:
    run(tmp_path, "examples,coverage,fuzzing,stateful", 300)
