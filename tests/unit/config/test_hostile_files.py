"""Hostile files: each one loads, or is refused as configuration."""

from __future__ import annotations

import contextlib
import itertools
import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import config
from penstock.config import StorageSettings
from penstock.errors import InvalidConfig
from penstock.settings import QueueSettings
from tests.unit.config.reading import HOME, Read, Refuse


def bomb(first: str, more: str) -> str:
    """Lines that each mean several times what the line before means."""
    lines = [f"a: &a {first.format()}"]
    lines += [f"{b}: &{b} {more.format(a)}" for a, b in itertools.pairwise("abcdefghijklmnopqrstuvwxyz")]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "queues: {a: &x {lease_s: 1}, b: *x}",
        "queues: {a: &x {lease_s: 1}, b: {<<: {lease_s: 1}}}",
        "storage: &x {rocksdb: *x}",
        "queues: &x {a: *x}",
        "queues: {a: &x [*x]}",
        bomb("[x, x]", "[*{0}, *{0}, *{0}]"),
        bomb("{{x: 1}}", "{{l: *{0}, r: *{0}}}"),
    ],
)
def test_aliases_and_merges_are_refused(refusal: Refuse, text: str) -> None:
    assert re.search("uses a YAML alias|has a key that is not text", refusal(text))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[\n"])
def test_deep_nesting_is_refused(refusal: Refuse, opening: str) -> None:
    assert re.match("is nested too deeply|is not one valid YAML document", refusal(opening * 2000))


def test_nesting_that_yaml_can_read_is_refused_by_its_key(refusal: Refuse) -> None:
    assert refusal("storage: {engine: " + "[" * 40 + "]" * 40 + "}").startswith("storage.engine is [[")
    assert refusal("queues: {q: {retry: {delays_s: [[[1]]]}}}").startswith("queues.q.retry.delays_s[0] ")


def test_a_file_beyond_the_limit_is_refused_without_reading_it_all(refusal: Refuse, read: Read) -> None:
    limit = config.MAX_FILE_BYTES
    assert refusal("#" * (limit + 1)) == f"is too large; accepted: up to {limit} bytes"
    assert read("#" * limit).queues == {}
    with pytest.raises(InvalidConfig, match="is too large"):
        config.load("/dev/zero", {})


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system [ls]",
        "!!python/name:os.system ''",
        "!!binary aGk=",
        "!!set {a}",
        "!!omap [a: b]",
        "!own x",
        "!own [x]",
        "!!int x",
        "!!int ''",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "2024-13-45",
        "2024-01-01",
        "9" * 5000,
        "0x" + "f" * 5000,
        "1" + ":59" * 5000,
    ],
)
def test_values_of_other_kinds_are_refused_by_their_key(refusal: Refuse, value: str) -> None:
    assert re.match(
        r"storage\.path (is neither text, number|has a YAML tag)", refusal(f"storage: {{path: {value}}}")
    )


def test_long_values_are_cut_in_errors(refusal: Refuse) -> None:
    assert len(refusal(f"storage: {{engine: {'x' * 10_000}}}")) < 200
    assert len(refusal(f"{'x' * 10_000}: 1")) < 200


nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=6,
)
sections = st.fixed_dictionaries(
    {},
    optional={
        "storage": nonsense | st.dictionaries(st.sampled_from(StorageSettings.__struct_fields__), nonsense),
        "backends": nonsense
        | st.dictionaries(st.text(), st.dictionaries(st.sampled_from(["url", "password", "x"]), nonsense)),
        "queues": nonsense
        | st.dictionaries(
            st.text(), st.dictionaries(st.sampled_from(QueueSettings.__struct_fields__[1:]), nonsense)
        ),
    },
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=sections | nonsense)
def test_nonsense_either_loads_or_is_refused_as_configuration(read: Read, tree: object) -> None:
    with contextlib.suppress(InvalidConfig):
        assert read(yaml.safe_dump(tree, allow_unicode=True)).source


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.binary(max_size=200)
    | st.text(alphabet="abc:-[]{}#&*!|>'\"%@`,? \n\t$~<=0123.", max_size=60).map(str.encode)
)
def test_any_bytes_either_load_or_are_refused_as_configuration(read: Read, raw: bytes) -> None:
    with contextlib.suppress(InvalidConfig):
        assert read(raw).source


@given(url=st.text(alphabet="rocksdbmey:/?&=%0+#@.~ durability_\0é", max_size=40))
def test_any_text_resolves_or_is_refused_as_configuration(url: str) -> None:
    for target in (url, "rocksdb:" + url, "memory:" + url, "redis+lists:" + url):
        with contextlib.suppress(InvalidConfig):
            assert config.resolve(target, HOME).source
