"""A process under mixed load is killed again and again: nothing that it was told is untrue afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.rig import Campaign, Zygote, campaigns, sweep_all
from tests.crash.truth import read_truth

TEST = Path(__file__).stem
#: All of them survive the process: what was acknowledged holds in each.
DURABILITIES = ("sync", "sync", "os", "interval")


def kill_round(campaign: Campaign, zygote: Zygote, durability: str) -> None:
    order = campaign.order(durability)
    campaign.kill(zygote, order)
    system = campaign.reopen(campaign.path)
    try:
        truth = read_truth(system)
        campaign.insist(campaign.oracle.judge(truth), order)
        swept = campaign.rng.random() < 0.5
        if swept:
            sweep_all(system)
            truth = read_truth(system)
            campaign.insist(campaign.oracle.judge(truth), order)
    finally:
        system.close()
    campaign.oracle.settle(truth, swept=swept)


def run_campaign(seed: int, rounds: int, folder: Path, request: pytest.FixtureRequest) -> None:
    campaign = Campaign(seed, folder, TEST)
    with Zygote() as zygote:
        for _ in range(rounds):
            kill_round(campaign, zygote, campaign.rng.choice(DURABILITIES))
            if campaign.rng.random() < 0.12:
                campaign.fresh_store()
    request.node.user_properties.append(("crash campaign", campaign.report()))


@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(2, 5), soak=(12, 20)))
def test_a_killed_process_leaves_every_acknowledged_result_true(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_campaign(seed, rounds, tmp_path, request)


@pytest.fixture
def _encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process that is started from here on encrypts its stores."""
    monkeypatch.setenv("PENSTOCK_STORAGE_ENCRYPTION_ENABLED", "true")
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", bytes(range(32)).hex())


@pytest.mark.usefixtures("_encrypted")
@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(1, 5), soak=(4, 20)))
def test_a_killed_process_leaves_every_acknowledged_result_true_in_an_encrypted_store(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_campaign(seed, rounds, tmp_path, request)


def kill_at_birth(seed: int, rounds: int, folder: Path, request: pytest.FixtureRequest) -> None:
    campaign = Campaign(seed, folder, TEST)
    with Zygote() as zygote:
        for _ in range(rounds):
            order = campaign.order()
            order.kill_at_step = None
            campaign.kill(zygote, order, campaign.rng.uniform(0, 0.12))
            campaign.insist(campaign.oracle.judge(campaign.read(campaign.path)), order)
            campaign.fresh_store()
    request.node.user_properties.append(("crash campaign", campaign.report()))


@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(1, 12), soak=(1, 150)))
def test_a_process_killed_while_it_makes_its_store_leaves_one_that_opens(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kill_at_birth(seed, rounds, tmp_path, request)


@pytest.mark.usefixtures("_encrypted")
@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(1, 6), soak=(1, 100)))
def test_a_process_killed_while_it_makes_an_encrypted_store_leaves_one_that_opens(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kill_at_birth(seed, rounds, tmp_path, request)
