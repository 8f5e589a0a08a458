"""Rehearsals: what a rollout would have done, by what its fleet has shown. Changes nothing.

Rules:
- A rollout that would be refused for its stages, its gates or its devices is refused here in the
  same words. That another rollout has devices is not looked at.
- The work is bounded before it begins, and one rehearsal is made at a time.
- Without any history of the fleet, or earlier installs of the model, nothing is made up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

from controller.domain.gates.language import Gate, parse_gate
from controller.domain.preflight import Answer
from controller.domain.rehearsal.harm import parse_harm
from controller.domain.rehearsal.history import DAY_HOURS, HOUR_S, History, Installs
from controller.domain.rehearsal.results import RehearsedCourse
from controller.domain.rehearsal.setting import Planted, RehearsedGate, Setting
from controller.domain.rehearsal.simulation import rehearse
from controller.domain.rehearsal.summary import summed
from controller.domain.rollout_plan import LEAST_EARLIER
from controller.domain.states import DeviceState
from controller.domain.wording import counted
from controller.errors import BusyError, ConflictError, InvalidRequestError
from controller.rehearsal_schemas import Rehearsal, RehearsalRequest, RehearsedHistory
from controller.rollout_schemas import RolloutRequest
from controller.services import preflight, rollout_checks, stage_checks
from controller.services.gate_figures import LEAST_VALUES, least_values
from controller.services.preflight import Preflight
from controller.services.rehearsal_history import HistoryReader
from controller.store import (
    device_facts,
    earlier_outcomes,
    install_times,
    releases,
    starting_orders,
)
from controller.store.database import Database
from controller.store.earlier_outcomes import EarlierOutcomes
from controller.store.groups import read_selector
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.durations import format_duration

MAX_DEVICES: Final = 2000
MAX_WORK: Final = 50_000
"""Runs times devices, those with planted harm counted, too."""

MAX_READING: Final = 10_000
"""Gates times devices: of each, a week of hours is read."""

MAX_EARLIER: Final = 1000
MINUTE_S: Final = 60.0


class _Read(NamedTuple):
    """What a rehearsal needs of the control state."""

    setting: Setting
    model: str
    release: str
    took_s: list[float]
    outcomes: EarlierOutcomes


class Rehearsals:
    """Tells what rollouts would have done.

    Args:
        database: The control state.
        preflight: Knows which devices cannot take a release.
        telemetry: What devices measured.
        clock: Wall time.
    """

    def __init__(
        self, database: Database, preflight: Preflight, telemetry: TelemetryStore, clock: Clock
    ) -> None:
        self._database = database
        self._preflight = preflight
        self._telemetry = telemetry
        self._clock = clock
        self._alone = Lock()

    def rehearse(self, request: RehearsalRequest) -> Rehearsal:
        """Rehearse a rollout.

        Args:
            request: The rollout, how often, and with what harm.

        Raises:
            InvalidRequestError: The rollout makes no sense, harm cannot be read, or it is too much
                work.
            SelectorError: A selector cannot be read.
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked, or there is no history to go by.
            UnfitError: Devices cannot take the release, and the request does not say what becomes
                of them.
            BusyError: Another rehearsal is being made.
        """
        if not self._alone.acquire(blocking=False):
            raise BusyError("another rehearsal is being made", remedy="try again when it has ended")
        try:
            return self._rehearse(request)
        finally:
            self._alone.release()

    def _rehearse(self, request: RehearsalRequest) -> Rehearsal:
        rollout = request.rollout
        stage_checks.check_stages(rollout)
        rollout_checks.check_control(rollout)
        own = stage_checks.own_gates(self._telemetry, rollout)
        texts = [(text, None) for text in rollout_checks.gate_texts(self._telemetry, rollout)]
        staged = [(text, stage) for stage, each in sorted(own.items()) for text in each]
        gates = [(parse_gate(text), stage) for text, stage in (*texts, *staged)]
        _check_shifts([gate for gate, _ in gates])
        harms = [parse_harm(text, [gate for gate, _ in gates]) for text in request.harm]
        is_harmed = bool(harms) or request.failing_percent > 0.0
        read = self._read(rollout, gates)
        setting = read.setting
        check_work(len(setting.devices), request.runs * (2 if is_harmed else 1), len(gates))
        history, about = self._history(read)
        planted = Planted(harms=tuple(harms), failing=request.failing_percent / 100.0)
        return Rehearsal(
            release=read.release,
            selector=rollout.selector,
            devices=len(setting.devices),
            runs=request.runs,
            seed=request.seed,
            history=about,
            plain=_course(setting, history, Planted(), request),
            harmed=_course(setting, history, planted, request) if is_harmed else None,
            notes=_notes(rollout, setting, about),
        )

    def _read(self, request: RolloutRequest, gates: Sequence[tuple[Gate, int | None]]) -> _Read:
        """Read the rollout's devices, and what became of earlier ones of the model.

        Raises:
            FleetError: It would be refused.
        """
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            selector = read_selector(transaction, request.selector, now_s=now_s)
            release = releases.get_published(transaction, request.release)
            matching = device_facts.of_selector(transaction, selector)
            facts = [fact for fact in matching if fact.state == DeviceState.ENROLLED]
            judged = self._preflight.answers(
                transaction, release, facts, is_windowed=bool(request.windows)
            )
            unfit = preflight.refusing(judged)
            rollout_checks.check_any(request, facts)
            rollout_checks.check_unfit(request, unfit, len(facts))
            left_out = unfit if request.unfit == "exclude" else {}
            members = [fact for fact in facts if fact.id not in left_out]
            names = [fact.id for fact in members]
            chosen = stage_checks.wanted_selectors(request)
            order = starting_orders.chosen(transaction, chosen, request.spread, names, now_s=now_s)
            specs = stage_checks.specs(request.stages, order, names)
            stage_checks.check_chosen(request, order, names)
            rollout_checks.check_growing(specs, len(names))
            stage_checks.check_gates(request, specs, order, names)
            return _Read(
                setting=Setting(
                    devices=tuple(names),
                    profiles=tuple(fact.profile_name for fact in members),
                    running=frozenset(name for name in names if judged[name].answer is Answer.RUNS),
                    order=order,
                    stages=specs,
                    limits=rollout_checks.limits(request),
                    gates=tuple(_rehearsed(gate, stage) for gate, stage in gates),
                    control_percent=request.control_percent if gates else 0.0,
                    rate=stage_checks.start_rate(request.rate),
                    id=request.id or "",
                ),
                model=release.name,
                release=f"{release.name}:{release.version}",
                took_s=install_times.took_s(transaction, release.name, limit=MAX_EARLIER),
                outcomes=earlier_outcomes.of_model(transaction, release.name),
            )

    def _history(self, read: _Read) -> tuple[History, RehearsedHistory]:
        """Return what the devices have shown.

        Raises:
            ConflictError: There is none.
            FleetError: The telemetry does not answer.
        """
        setting, outcomes = read.setting, read.outcomes
        if len(read.took_s) < LEAST_EARLIER:
            raise ConflictError(
                f"{counted(len(read.took_s))} installed {read.model} in earlier rollouts: too few "
                "to tell how long that takes",
                remedy=f"rehearse when {LEAST_EARLIER} have; --dry-run shows the stages already",
            )
        reader = HistoryReader(
            self._telemetry, setting.devices, read.model, now_s=self._clock.now_s()
        )
        heard = reader.heard()
        if not heard.any():
            left_s = HOUR_S - self._clock.now_s() % HOUR_S
            wait = format_duration(math.ceil(left_s / MINUTE_S) * MINUTE_S)
            raise ConflictError(
                "none of the devices told anything in the hours of the last 7 days that are over: "
                "history is read by the hour",
                remedy=f"rehearse in {wait}, when the hour is over, if devices tell something "
                "before; --dry-run shows the stages already",
            )
        ended = sum(outcomes)
        installs = Installs(
            took_s=tuple(read.took_s),
            failed=outcomes.failed / ended,
            refused=outcomes.refused / ended,
            timed_out=outcomes.timed_out / ended,
        )
        history = History(
            heard=heard,
            figures=tuple(reader.figures(one.gate) for one in setting.gates),
            installs=installs,
        )
        known = int(heard.any(axis=1).sum())
        return history, RehearsedHistory(
            hours=heard.shape[1] - int(heard.any(axis=0).argmax()),
            heard=known,
            borrowed=len(setting.devices) - known,
            installs=len(read.took_s),
            median_install_s=statistics.median(read.took_s),
            outcomes=ended,
            failed_percent=100.0 * installs.failed,
            refused_percent=100.0 * installs.refused,
            timed_out_percent=100.0 * installs.timed_out,
        )


def _check_shifts(gates: Sequence[Gate]) -> None:
    """Refuse gates whose figures are not those of single hours.

    Raises:
        InvalidRequestError: There is one.
    """
    for gate in gates:
        if gate.is_shift:
            raise InvalidRequestError(
                f"gate {gate.text}: a rehearsal cannot ask for shifts",
                remedy="rehearse the rollout without it",
            )


def check_work(devices: int, runs: int, gates: int) -> None:
    """Refuse a rehearsal that takes too long.

    Args:
        devices: How many devices it has.
        runs: How many runs, those with planted harm included.
        gates: How many gates.

    Raises:
        InvalidRequestError: It does.
    """
    if devices > MAX_DEVICES:
        raise InvalidRequestError(
            f"a rehearsal has at most {MAX_DEVICES} devices, not {devices}",
            remedy="choose a part of them with a selector",
        )
    if devices * runs > MAX_WORK:
        raise InvalidRequestError(
            f"{runs} runs over {counted(devices)} are too many, harmed ones included",
            remedy=f"runs times devices may be {MAX_WORK}: ask for fewer runs",
        )
    if devices * gates > MAX_READING:
        raise InvalidRequestError(
            f"{gates} gates over {counted(devices)} are too many to read",
            remedy=f"gates times devices may be {MAX_READING}: choose a part of the devices",
        )


def _rehearsed(gate: Gate, stage: int | None) -> RehearsedGate:
    if gate.statistic == "rate":
        return RehearsedGate(gate=gate, stage=stage, least=0.0)
    least = float(LEAST_VALUES) if gate.over else least_values(gate.statistic)
    return RehearsedGate(gate=gate, stage=stage, least=least)


def _course(
    setting: Setting, history: History, planted: Planted, request: RehearsalRequest
) -> RehearsedCourse:
    outcomes = [
        rehearse(setting, history, planted, seed=request.seed, run=number)
        for number in range(request.runs)
    ]
    gates = [(one.gate.text, one.stage) for one in setting.gates]
    return summed(outcomes, gates, len(setting.stages))


def _notes(request: RolloutRequest, setting: Setting, history: RehearsedHistory) -> list[str]:
    """Say what of a rollout the rehearsal does not show."""
    notes = []
    if setting.gates and history.hours < DAY_HOURS:
        notes.append(
            "less than a day of history: gates seem far surer or far less sure than they will be"
        )
    if setting.limits.approval or any(stage.approval for stage in setting.stages):
        notes.append("approvals are given at once")
    if request.windows:
        notes.append("windows are not heeded: devices activate the release at all hours")
    if request.shadow_agreement_percent is not None:
        notes.append("whether the shadow agrees is not asked")
    if any(stage.shadow for stage in setting.stages):
        notes.append("no stage waits for its shadow")
    if request.on_halt == "revert":
        notes.append("a run ends with the halt: how long devices take to go back is not told")
    return notes
