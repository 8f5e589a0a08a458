"""The benchmark of power cuts: a few cuts break nothing, and it sees each fault that is planted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.powercuts.device import Call
from benchmarks.powercuts.plants import GONE, PLANTS
from benchmarks.powercuts.run import PowerCuts
from benchmarks.powercuts.tally import Tally
from tests.simulators.patience import until

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.broker,
    pytest.mark.xdist_group("powercut"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def cuts() -> Iterator[PowerCuts]:
    """Run a controller and one device, which has installed each release once."""
    with (
        tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as root,
        PowerCuts(Path(root), seed=1, devices=1, releases=3) as made,
    ):
        yield made


@pytest.fixture
def restored(cuts: PowerCuts) -> Iterator[PowerCuts]:
    """Undo afterwards what plants do that nothing heals."""
    answers = dict(cuts.fleet.releases.answers)
    yield cuts
    cuts.fleet.releases.answers.update(answers)
    for path in cuts.fleet.box.root.glob(f"devices/*/*{GONE}"):
        path.rename(path.with_suffix(".toml"))


def cut(cuts: PowerCuts, kills: int, *plants: str) -> tuple[Tally, list[str]]:
    """Cut the power; return the figures and the violations without the device's name."""
    tally = Tally()
    chosen = [PLANTS[name] for name in plants]
    cuts.cut(tally, kills=kills, rest_every=10, plants=chosen)
    return tally, [violation.partition(": ")[2] for violation in tally.violations]


def test_after_a_few_cuts_a_verified_release_serves_and_nothing_is_left_over(
    cuts: PowerCuts,
) -> None:
    tally, violations = cut(cuts, 3)
    assert violations == []
    assert tally.kills == 3
    assert tally.rests == 1
    assert tally.answers["right"] > 0
    assert {row.name: row.met for row in tally.rows(3)}["power cuts"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_power_goes_at_a_system_call_that_is_not_the_first_of_its_kind(cuts: PowerCuts) -> None:
    [device] = cuts.devices
    device.start(Call("write", 4))
    try:
        until(lambda: not device.is_running, "the end of the agent")
        until(lambda: not device.processes(), "the end of its workers")
    finally:
        device.cut()


def test_what_nobody_signed_what_lacks_a_file_and_what_is_left_over_is_told(
    cuts: PowerCuts,
) -> None:
    tally, violations = cut(cuts, 3, "unverified", "incomplete", "leak")
    told = [PLANTS[name].told for name in ("unverified", "incomplete", "leak")]
    # No more than these: no answer came from what nobody signed, and all orders were done.
    assert [word for word in told if not any(word in line for line in violations)] == []
    # A slow device may still mend the incomplete release when what is stored is compared: it lacks
    # the file, and has the part that it fetches of it.
    known = (*told, "missing: ", "left over: parts/")
    assert [line for line in violations if not any(word in line for word in known)] == []
    assert tally.answers["right"] > 0
    assert {row.name: row.met for row in tally.rows(3)}["violations"] is False


def test_an_answer_that_is_not_the_expected_one_is_told(restored: PowerCuts) -> None:
    tally, violations = cut(restored, 1, "answers")
    assert any(PLANTS["answers"].told in line for line in violations)
    assert tally.answers["unverified"] > 0


def test_a_device_that_does_not_serve_again_is_told(restored: PowerCuts) -> None:
    _, violations = cut(restored, 1, "dead")
    assert [line for line in violations if PLANTS["dead"].told in line]
