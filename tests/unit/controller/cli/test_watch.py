from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import pytest

from controller.cli.errors import UnreachableError
from controller.cli.watch import changes, watch
from controller.domain.states import DeploymentState, RolloutState
from controller.rollout_schemas import Deployment, Rollout, RolloutEvent
from wire.codec import convert


class StepClock:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep(self, duration_s: float) -> None:
        self.at_s += duration_s


def rollout(
    state: RolloutState = RolloutState.RUNNING,
    *,
    counts: dict[DeploymentState, int] | None = None,
    deployments: list[Deployment] | None = None,
    events: list[RolloutEvent] | None = None,
    stage: str = "running",
) -> Rollout:
    return convert(
        {
            "id": "r1",
            "release": "digits:2",
            "selector": "",
            "state": state,
            "created_at_s": 0,
            "finished_at_s": None,
            "stages": [{"number": 1, "target": 2, "state": stage}],
            "counts": counts or {"pending": 2},
            "deployments": [asdict(part) for part in deployments or []],
            "events": [asdict(event) for event in events or []],
        },
        Rollout,
    )


def scripted(*steps: Rollout | Exception) -> Callable[[], Rollout]:
    remaining: Iterator[Rollout | Exception] = iter(steps)

    def fetch() -> Rollout:
        step = next(remaining)
        if isinstance(step, Exception):
            raise step
        return step

    return fetch


@pytest.mark.parametrize(
    ("state", "code"),
    [(RolloutState.SUCCEEDED, 0), (RolloutState.HALTED, 1), (RolloutState.ABORTED, 1)],
)
def test_exit_code(state: RolloutState, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    clock = StepClock()
    assert (
        watch(scripted(rollout(), rollout(RolloutState.PAUSED), rollout(state)), clock=clock)
        == code
    )
    out = capsys.readouterr().out
    assert f"rollout r1 {state}: 2 pending; 2 in all" in out


def test_one_line_for_each_change() -> None:
    assert changes(None, rollout()) == [
        "stage 1 of 1 (to 2): running",
        "rollout r1 running: 2 pending; 2 in all",
    ]
    assert changes(rollout(), rollout()) == []
    assigned = Deployment(
        device="cam-1", state=DeploymentState.ASSIGNED, stage=1, phase="fetching", done_bytes=512,
        total_bytes=2048,
    )  # fmt: skip
    counts: dict[DeploymentState, int] = {
        DeploymentState.PENDING: 1,
        DeploymentState.ASSIGNED: 1,
    }
    second = rollout(counts=counts, deployments=[assigned], stage="soaking")
    assert changes(rollout(), second) == [
        "cam-1 assigned fetching 512 B of 2.0 KiB",
        "stage 1 of 1 (to 2): soaking",
        "rollout r1 running: 1 pending, 1 assigned; 2 in all",
    ]
    assert changes(second, second) == []
    held = replace(assigned, detail="hook x says later\x1b[2J")
    third = rollout(counts=counts, deployments=[held], stage="soaking")
    assert changes(second, third) == [
        "cam-1 assigned fetching 512 B of 2.0 KiB: hook x says later\ufffd[2J"
    ]


def test_failures_and_decisions_are_told_with_their_reason() -> None:
    failed = Deployment(
        device="cam-1",
        state=DeploymentState.FAILED,
        stage=1,
        error_code="agent.probe",
        detail="bad\x1b[2J",
    )
    event = RolloutEvent(at_s=0, action="halt", reason="1 failed, 0 allowed")
    lines = changes(rollout(), rollout(RolloutState.HALTED, deployments=[failed], events=[event]))
    assert lines[0].endswith("halt: 1 failed, 0 allowed")
    assert lines[1] == "cam-1 failed: agent.probe bad\ufffd[2J"


def test_controller_that_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    away = UnreachableError("no controller answers at http://x")
    fetch = scripted(rollout(), away, away, rollout(RolloutState.SUCCEEDED))
    assert watch(fetch, clock=StepClock()) == 0
    assert capsys.readouterr().err == "fleet: no controller answers at http://x; waiting for it\n"


def test_controller_that_stays_away() -> None:
    def fetch() -> Rollout:
        raise UnreachableError("no controller answers at http://x")

    clock = StepClock()
    with pytest.raises(UnreachableError):
        watch(fetch, clock=clock)
    assert 120 < clock.at_s < 125
