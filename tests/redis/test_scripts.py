"""Scripts as servers get them: the same as they are written, without what makes a call of them dearer."""

import re
from importlib import resources

import pytest

from penstock.backends.redis.scripts import lean, script, written

_LUA = resources.files("penstock.backends.redis") / "lua"
_OPERATIONS = sorted(
    file.name.removesuffix(".lua") for file in _LUA.iterdir() if re.fullmatch(r"[a-z]\w*\.lua", file.name)
)


@pytest.mark.parametrize("store", ["hash", "stream"])
@pytest.mark.parametrize("name", _OPERATIONS)
def test_a_script_keeps_every_function_that_it_calls_and_no_name_of_a_number(name: str, store: str) -> None:
    whole, text = written(name, store), script(name, store).text.decode()

    code = re.sub(r"'(?:\\.|[^'\\])*'", "''", text)
    kept = set(re.findall(r"^local function (\w+)", text, re.M))
    gone = set(re.findall(r"^local function (\w+)", whole, re.M)) - kept
    assert gone.isdisjoint(re.findall(r"\b\w+(?=\()", code))
    assert {"READY", "SEQ", "DONE_NOW"}.isdisjoint(re.findall(r"\w+", code))


def test_what_stands_in_texts_stays_and_lines_keep_their_numbers() -> None:
    written = (
        "local A, B =\n  1, -2\nlocal AB = A + 3\nlocal NAME = 'A'\n-- A comment on B.\n"
        "local function unused() return B end\nlocal function used(x)\n  return x .. 'A\\'B' .. NAME\nend\n"
        "return {used(AB), B, true}\n"
    )

    expected = (
        "\n\n\nlocal NAME = 'A'\n\n\nlocal function used(x)\n  return x .. 'A\\'B' .. NAME\nend\n"
        "return {used(4), -2, true}\n"
    )
    assert lean(written) == expected


def test_a_function_that_only_unused_ones_call_goes_with_them() -> None:
    written = (
        "local function low() return 1 end\nlocal function high()\n  return low() + high()\nend\nreturn 2\n"
    )

    assert lean(written).strip() == "return 2"


def test_a_name_of_two_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="A is 1 and 2 in one script"):
        lean("local A = 1\nlocal A = 2\nreturn A\n")
