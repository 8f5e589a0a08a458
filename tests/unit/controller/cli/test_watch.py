from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import pytest

from controller.cli.ending import end_lines, exit_status, outcome_line
from controller.cli.watch import changes, counts_text, state_text, transfer_lines, watch
from controller.client.errors import UnreachableError
from controller.domain.states import DeploymentState, RolloutState
from controller.domain.transfers import TransferSum
from controller.rollout_schemas import Deployment, OutcomeGroup, Rollout, RolloutEvent
from controller.stage_schemas import StageProgress
from wire.codec import convert

MIB = 2**20


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

    def wait(self, event: threading.Event, duration_s: float) -> bool:
        self.sleep(duration_s)
        return event.is_set()


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


DONE = {DeploymentState.SUCCEEDED: 2}


@pytest.mark.parametrize(
    ("state", "counts", "code"),
    [
        (RolloutState.SUCCEEDED, DONE, 0),
        (RolloutState.SUCCEEDED, {DeploymentState.SUCCEEDED: 1, DeploymentState.WAITING: 1}, 0),
        (RolloutState.SUCCEEDED, {DeploymentState.SUCCEEDED: 1, DeploymentState.FAILED: 1}, 3),
        (RolloutState.SUCCEEDED, {DeploymentState.FAILED: 2}, 3),
        (RolloutState.SUCCEEDED, {DeploymentState.WAITING: 2}, 3),
        (RolloutState.HALTED, DONE, 1),
        (RolloutState.ABORTED, DONE, 1),
    ],
)
def test_exit_status(
    state: RolloutState,
    counts: dict[DeploymentState, int],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = rollout(), rollout(RolloutState.PAUSED), rollout(state, counts=counts)
    assert watch(scripted(*steps), clock=StepClock()) == code
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"rollout r1 {state}: ") for line in lines)
    assert (f"exit status {code}" in lines[-1]) == (code > 0)


def test_of_a_rollout_that_a_newer_one_took_devices_of_the_exit_status_tells() -> None:
    counts = {DeploymentState.SUCCEEDED: 1, DeploymentState.CANCELLED: 7}
    ended = rollout(RolloutState.SUCCEEDED, counts=counts)
    out = OutcomeGroup(
        state=DeploymentState.CANCELLED,
        error_code="controller.excluded",
        count=1,
        detail="",
        devices=["cam-1"],
    )
    ended.outcomes = [out]
    assert exit_status(ended) == 0, "its operator took them out"
    ended.outcomes.append(replace(out, error_code="controller.superseded", count=6))
    ended.superseded_by = "r2"
    assert end_lines(ended) == ["1 of 8 devices has digits:2, rollout r2 took 6; exit status 3"]


def test_the_last_lines_say_who_failed_how_many_have_it_and_what_to_do() -> None:
    counts = {DeploymentState.SUCCEEDED: 4, DeploymentState.FAILED: 6, DeploymentState.WAITING: 2}
    ended = rollout(RolloutState.SUCCEEDED, counts=counts)
    ended.outcomes = [
        OutcomeGroup(
            state=DeploymentState.FAILED,
            error_code="agent.golden",
            count=6,
            detail="3 of 8 answers differ",
            devices=["cam-1", "cam-2"],
        )
    ]
    why, what = end_lines(ended)
    assert why == "6 failed with agent.golden (such as cam-1, cam-2): 3 of 8 answers differ"
    assert what == (
        "4 of 12 devices have digits:2, 2 to follow when online again; exit status 3. "
        "`fleet rollout retry r1 --failed` tries those that failed once more. "
        "`fleet rollout rollback r1` brings its devices back, if need be."
    )
    good = rollout(RolloutState.SUCCEEDED, counts=DONE)
    assert end_lines(good) == ["all 2 devices have digits:2"]
    back = rollout(RolloutState.SUCCEEDED, counts=DONE)
    back.rollback_of = "r0"
    assert end_lines(back) == ["all 2 devices went back"]


def test_one_line_for_each_change_of_the_rollout_and_none_for_devices() -> None:
    assert changes(None, rollout()) == [
        "stage 1 of 1 (to 2): running",
        "rollout r1 running: 2 pending; 2 in all",
    ]
    assert changes(rollout(), rollout()) == []
    assigned = Deployment(device="cam-1", state=DeploymentState.ASSIGNED, stage=1, phase="fetching")
    counts = {DeploymentState.PENDING: 1, DeploymentState.ASSIGNED: 1}
    events = [
        RolloutEvent(at_s=0.0, action="start", reason="1 device"),
        RolloutEvent(at_s=1.0, action="wait", reason="waits for 1 device"),
    ]
    second = rollout(counts=counts, deployments=[assigned], stage="soaking", events=events)
    told = changes(rollout(), second)
    assert [line.partition(" wait: ")[2] or line for line in told] == [
        "waits for 1 device",
        "stage 1 of 1 (to 2): soaking",
    ]
    assert changes(second, second) == []
    halted = rollout(RolloutState.HALTED, counts=counts, stage="soaking", events=events)
    assert changes(second, halted)[0] == "stage 1 of 1 (to 2): halted"


def test_an_answer_without_the_oldest_entries_of_the_log_tells_what_is_new() -> None:
    log = [RolloutEvent(at_s=at, action="wait", reason=f"{at:g}") for at in (0.0, 1.0, 1.0, 2.0)]

    def told(old: list[RolloutEvent], new: list[RolloutEvent]) -> list[str]:
        lines = changes(rollout(events=old), rollout(events=new))
        return [line.rpartition(" ")[2] for line in lines]

    assert told(log[:3], log[1:]) == ["2"]
    assert told(log[:3], log) == ["2"]
    assert told(log[:1], log[1:]) == ["1", "1", "2"], "more than an answer holds"
    assert not told(log, log)


def test_figures_are_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        rollout(counts={DeploymentState.PENDING: 100 - done, DeploymentState.SUCCEEDED: done})
        for done in range(1, 61)
    ]
    end = rollout(RolloutState.SUCCEEDED, counts={DeploymentState.SUCCEEDED: 100}, stage="done")
    watch(scripted(*steps, end), clock=StepClock())
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith("rollout r1 running")]
    assert [line.split()[3] for line in told] == ["99", "79", "59"], "every ten seconds"
    assert lines[-1] == "all 100 devices have digits:2"


def together(done_mib: int, *, devices: int = 3, **changes: float | None) -> TransferSum:
    known = {"silent": 0, "rate_bytes_per_s": 3.4 * MIB, "half_rest_s": 30.0, "rest_s": 120.0}
    return convert(
        {"devices": devices, "done_bytes": done_mib * MIB, "total_bytes": 126 * MIB}
        | known
        | changes,
        TransferSum,
    )


@pytest.mark.parametrize(
    ("transfers", "line"),
    [
        (
            together(30),
            (
                "3 devices fetch: 30.0 of 126.0 MiB (23 %), 3.4 MiB/s together, about 30 s left "
                "for half of them and 2 min for the last"
            ),
        ),
        (
            together(30, silent=1, rest_s=None),
            (
                "3 devices fetch: 30.0 of 126.0 MiB (23 %), 3.4 MiB/s together, about 30 s left "
                "for half of them, no news of 1"
            ),
        ),
        (
            together(30, devices=1),
            "1 device fetches: 30.0 of 126.0 MiB (23 %), 3.4 MiB/s, about 2 min left",
        ),
        (
            together(0, silent=3, rate_bytes_per_s=0.0, half_rest_s=None, rest_s=None),
            "3 devices fetch: 0.0 of 126.0 MiB (0 %), no news of 3",
        ),
    ],
)
def test_transfers_together_in_one_line(transfers: TransferSum, line: str) -> None:
    assert transfer_lines(replace(rollout(), transfers=transfers)) == [line]


def test_each_stage_that_fetches_has_a_line_if_several_do() -> None:
    assert transfer_lines(rollout()) == []
    stages = [
        StageProgress(number=number, target=2, state="running", transfers=together(number))
        for number in (1, 2)
    ]
    shown = transfer_lines(replace(rollout(), transfers=together(3), stages=stages))
    assert [line.partition(" fetch")[0] for line in shown] == [
        "3 devices", "stage 1: 3 devices", "stage 2: 3 devices",
    ]  # fmt: skip


def test_transfers_are_told_now_and_then_and_not_with_each_figure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [replace(rollout(), transfers=together(done_mib)) for done_mib in range(60)]
    watch(scripted(*steps, rollout(RolloutState.SUCCEEDED)), clock=StepClock())
    lines = [line for line in capsys.readouterr().out.splitlines() if "fetch" in line]
    assert [line.split()[3] for line in lines] == ["0.0", "20.0", "40.0"], "every ten seconds"


def test_failures_and_decisions_are_told_with_their_reason() -> None:
    failed = Deployment(
        device="cam-1",
        state=DeploymentState.FAILED,
        stage=1,
        error_code="agent.probe",
        detail="bad\x1b[2J",
    )
    event = RolloutEvent(at_s=0, action="halt", reason="1 failed, 0 allowed")
    halted = rollout(RolloutState.HALTED, deployments=[failed], events=[event])
    assert changes(rollout(), halted)[0].endswith("halt: 1 failed, 0 allowed")
    with_code = OutcomeGroup(
        state=DeploymentState.FAILED,
        error_code=failed.error_code,
        count=1,
        detail=failed.detail,
        devices=["cam-1"],
    )
    assert outcome_line(with_code) == "1 failed with agent.probe (cam-1): bad\ufffd[2J"


def test_controller_that_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    away = UnreachableError("no controller answers at http://x")
    fetch = scripted(rollout(), away, away, rollout(RolloutState.SUCCEEDED))
    assert watch(fetch, clock=StepClock()) == 3, "no device has it"
    assert capsys.readouterr().err == "fleet: no controller answers at http://x; waiting for it\n"


def test_controller_that_stays_away() -> None:
    def fetch() -> Rollout:
        raise UnreachableError("no controller answers at http://x")

    clock = StepClock()
    with pytest.raises(UnreachableError):
        watch(fetch, clock=clock)
    assert 120 < clock.at_s < 125


def test_a_device_that_cannot_take_the_release_is_told_as_left_out() -> None:
    parts = [
        Deployment(
            device="cam-1",
            state=DeploymentState.CANCELLED,
            stage=1,
            error_code="controller.unfit",
            detail="it lacks onnxruntime",
        ),
        Deployment(device="cam-2", state=DeploymentState.CANCELLED, stage=1),
    ]
    halted = rollout(
        RolloutState.HALTED,
        counts={DeploymentState.CANCELLED: 2, DeploymentState.SUCCEEDED: 1},
        deployments=parts,
    )
    halted.left_out = 1
    assert [state_text(part) for part in parts] == ["left out", "cancelled"]
    assert counts_text(halted) == "1 cancelled, 1 succeeded, 1 left out; 3 in all"
    halted.counts[DeploymentState.CANCELLED], halted.left_out = 1, 1
    assert counts_text(halted) == "1 succeeded, 1 left out; 2 in all"


def test_what_a_rollout_waits_for_is_told_once_with_what_a_person_can_do() -> None:
    runs, waits = rollout(), rollout(stage="awaiting_approval")
    told = "`fleet rollout approve r1` lets the next stage begin."
    assert told in changes(runs, waits)
    assert told in changes(None, waits)
    assert told not in changes(waits, waits)
    assert not any("`fleet" in line for line in changes(waits, runs))


def test_devices_that_wait_for_a_window_are_told_once() -> None:
    def put_off(detail: str) -> Rollout:
        state = DeploymentState.ASSIGNED
        return rollout(
            deployments=[Deployment(device="cam-1", state=state, stage=1, detail=detail)]
        )

    first = changes(rollout(), put_off("waits until 22:00"))
    assert any("1 device puts it off, cam-1: waits until 22:00." in line for line in first)
    again = changes(put_off("waits until 22:00"), put_off("waits until 22:01"))
    assert not any("puts it off" in line for line in again)
