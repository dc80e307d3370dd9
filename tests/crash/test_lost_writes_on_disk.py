"""A power cut takes what was not synced: the log's files of a killed process, cut back."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from penstock.clock import SystemClock
from tests.crash import child
from tests.crash.bulk import OPEN_ONLY
from tests.crash.child import Order, log_sizes
from tests.crash.oracle import prefix_complaints
from tests.crash.record import Synced, read_log
from tests.crash.rig import NO_SOCKET, Campaign, Zygote, campaigns

TEST = Path(__file__).stem
#: What the disk has of the log: exactly what was synced; a part of the rest too; garbage behind it.
CUTS = ("synced", "torn", "garbage")
GARBAGE_BYTES = 40_000
PATIENCE_S = 40.0


def synced_sizes(order: Order, before: dict[str, int]) -> dict[str, int]:
    """How much of each log file a power cut leaves for certain."""
    sizes = dict(before)  # The store was closed, or its log not yet replaced, when the child started.
    for record in read_log(Path(order.logs) / "syncs"):
        assert isinstance(record, Synced)
        sizes |= record.sizes
    return sizes


def cut_log(store: Path, synced: dict[str, int], cut: str, rng: Random) -> None:
    """Lose the end of the newest log file.

    Older ones stay whole: the engine syncs them before it writes a table of what they hold, and the
    newest one is only synced after them.
    """
    files = sorted(store.glob("*.log"), key=lambda file: int(file.stem))
    if not files:
        return
    newest = files[-1]
    full = newest.stat().st_size
    certain = min(synced.get(newest.name, 0), full)
    length = certain if cut == "synced" else rng.randint(certain, full)
    with newest.open("r+b") as file:
        file.truncate(length)
        if cut == "garbage":
            file.seek(length)
            size = rng.randint(1, GARBAGE_BYTES)
            file.write(bytes(size) if rng.random() < 0.3 else rng.randbytes(size))


def cut_round(campaign: Campaign, zygote: Zygote, durability: str) -> None:
    order = campaign.order(durability)
    before = log_sizes(campaign.path)
    campaign.kill(zygote, order)
    crashed_ns = SystemClock().now_ns()
    synced = synced_sizes(order, before)
    oracle = campaign.oracle
    left = campaign.path
    whole = last = campaign.read(copy_store(campaign, left, "whole", synced))
    campaign.insist(oracle.judge(whole), order)
    for cut in CUTS:
        store = copy_store(campaign, left, cut, synced)
        if cut == "garbage":
            insist_that_it_opens(campaign, zygote, order)
        last = campaign.read(store)
        found = oracle.judge(last) if durability == "sync" else prefix_complaints(last, whole, crashed_ns)
        campaign.insist((f"[{cut}] {complaint}" for complaint in found), order)
    if durability == "sync":
        oracle.settle(last, swept=False)
    else:
        oracle.rebase(last)


def copy_store(campaign: Campaign, left: Path, cut: str, synced: dict[str, int]) -> Path:
    """What the store of a killed process is, once the disk has lost some of it."""
    campaign.path = campaign.folder / f"store-{campaign.rounds}-{cut}"
    if left.exists():
        shutil.copytree(left, campaign.path, ignore=NO_SOCKET)
        if cut != "whole":
            cut_log(campaign.path, synced, cut, campaign.rng)
    return campaign.path


def insist_that_it_opens(campaign: Campaign, zygote: Zygote, order: Order) -> None:
    """In another process: one that hangs in the engine cannot be interrupted."""
    probed = campaign.folder / "store-probed"
    shutil.rmtree(probed, ignore_errors=True)
    if campaign.path.exists():
        shutil.copytree(campaign.path, probed, ignore=NO_SOCKET)
    opens = Order(path=str(probed), logs=order.logs, seed=0, round=0, bulk=OPEN_ONLY)
    status = zygote.run(opens, PATIENCE_S, once_open=False)
    campaign.insist([f"it does not open: status {status}"] if status != child.ENDED << 8 else [], order)


def run_campaign(
    seed: int, rounds: int, durability: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    campaign = Campaign(seed, folder, TEST)
    with Zygote() as zygote:
        for _ in range(rounds):
            cut_round(campaign, zygote, durability)
            for other in folder.glob("store-*"):
                if other != campaign.path:
                    shutil.rmtree(other)
            if campaign.rng.random() < 0.15:
                campaign.fresh_store()
    request.node.user_properties.append(("crash campaign", campaign.report()))


@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(1, 5), soak=(8, 20)))
def test_a_log_cut_back_to_its_last_sync_still_has_everything_acknowledged_in_sync_mode(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_campaign(seed, rounds, "sync", tmp_path, request)


@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(1, 5), soak=(3, 20)))
def test_a_log_cut_anywhere_leaves_a_prefix_without_holes_in_os_mode(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_campaign(seed, rounds, "os", tmp_path, request)
