"""A script's time is looked at between its instructions, and never where nobody catches what is raised."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from penstock.hooks import child
from penstock.hooks.wire import load_request, pack_new
from penstock.message import NewMessage

SANDBOX = Path(child.__file__).with_name("sandbox.lua").read_bytes()


class Line(child.Line):
    """Nobody is at its other end."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    "body",
    [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() return pcall(f) end while true do f() end",
    ],
)
def test_no_look_before_or_after_a_script_raises_anything(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child.Child, "_arm", lambda self: None)  # The signal is for another process.
    at_each_instruction = SANDBOX.replace(b"INSTRUCTIONS_PER_LOOK = 5000", b"INSTRUCTIONS_PER_LOOK = 1")
    assert at_each_instruction != SANDBOX
    lua54: Any = importlib.import_module("lupa.lua54")  # It ships no types.
    helper = child.Child(Line(), lua54, at_each_instruction, 50, 1 << 20)
    source = f"function on_enqueue(message)\n  {body}\nend"
    assert helper._load(load_request(1, "on_enqueue", "evil", source)[1:]) == child._answers([b"\xc0"])
    message = pack_new(NewMessage(b"one"))
    request = child.RUN_HEAD.pack(1, 1, 0.0, 1) + child.LENGTH.pack(len(message)) + message
    assert b"on_enqueue:2: stopped after 50 ms" in helper._run(request)
