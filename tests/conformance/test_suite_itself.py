"""The suite is sound: no test hides another, and no flag is believed without its proof."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.capabilities import MEANING, Capabilities
from penstock.testing.harness import requires
from penstock.testing.proofs import PROOFS
from penstock.testing.suite import BackendSuite


def own_tests(part: type) -> list[str]:
    return [name for name in vars(part) if name.startswith("test_")]


def claiming(**flags: bool) -> Any:
    return SimpleNamespace(capabilities=Capabilities(**flags))


def test_no_part_of_the_suite_hides_a_test_of_another() -> None:
    names = Counter(name for part in BackendSuite.__mro__ for name in own_tests(part))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 300


def test_the_table_names_tests_that_exist_and_are_about_their_flag() -> None:
    for flag, proof in PROOFS.items():
        for name in proof.on:
            assert flag in getattr(BackendSuite, name).requires, name
        for name in proof.off:
            assert getattr(BackendSuite, name).refuses == (flag,), name


@pytest.mark.parametrize("flag", [flag for flag, proof in PROOFS.items() if not proof.on])
def test_a_flag_without_a_proof_cannot_be_claimed(flag: str) -> None:
    with pytest.raises(AssertionError, match=flag):
        BackendSuite().test_every_flag_that_is_on_has_its_proof(claiming(**{flag: True}))


def test_a_backend_that_leaves_a_proof_out_fails() -> None:
    class WithoutFifoTests(BackendSuite):
        test_a_message_that_waits_for_its_retry_blocks_its_key = cast(Any, None)

    WithoutFifoTests().test_every_flag_that_is_on_has_its_proof(claiming(delay=True))
    with pytest.raises(AssertionError, match="fifo"):
        WithoutFifoTests().test_every_flag_that_is_on_has_its_proof(claiming(fifo=True))


def test_a_test_can_only_require_a_capability_that_exists() -> None:
    with pytest.raises(ValueError, match="no capability is called 'speed'"):
        requires("speed")
    assert callable(requires(*MEANING))
