"""Looks at the gates of rollouts: asks the telemetry, and saves what it says.

Rules:
- A look reads the telemetry outside of any transaction that writes, and is saved by itself. The
  rollout then decides by the last look.
- All devices are looked at over the same time, as the controller's clock has it: since the stage
  was complete, or else over the last soak time, then only those that had the release all the while.
  The minute that still runs does not count.
- Only devices that are online begin. So those that were away when a stage began are on neither
  side: they were not chosen by chance, and a place in trouble would be on the side of the old one.
- The control group, and the devices that have not begun, are compared with those that have the
  release. Without either, devices are compared with themselves in the same hours of the last day
  that ended before the rollout.
- In the worst case, devices with the release that told enough before and are silent now count as
  harmed wholly. They make no gate fail: only what devices tell does.
- A fault of the telemetry holds the gate, and is told; it never passes one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from controller.domain.gates.bounded import most_harm
from controller.domain.gates.contrast import Contrast, Observed, against_before, contrast
from controller.domain.gates.language import Gate, parse_gate
from controller.domain.gates.looks import level, next_look_s
from controller.domain.gates.shift import of_all_classes
from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.gates.verdicts import Coverage, Verdict, verdict
from controller.domain.gates.waiting import wait_text
from controller.domain.states import RolloutState
from controller.errors import InvalidRequestError
from controller.services.gate_figures import figures, least_values, measured
from controller.services.gate_shift import OTHERS, check_shift, class_shares, references
from controller.services.preflight import Preflight
from controller.store import gates, rollouts, stages
from controller.store.database import Database
from controller.store.gates import Member
from controller.store.tables import RolloutRow
from telemetry.errors import QueryError, UnknownMetricError
from telemetry.server.question import SECONDS_PER_MINUTE
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.errors import FleetError

BEFORE_S: Final = 86_400.0
"""Devices are known by what they measured on the day before: they do not do the same at night."""

LEAST_WINDOW_S: Final = 600.0
"""Over how long devices are looked at, at least, while a stage still runs."""

_log = logging.getLogger(__name__)


class _Due(NamedTuple):
    """A look that is due."""

    row: RolloutRow
    number: int
    gates: dict[int, Gate]
    """By their number: those that are asked in the stage."""

    family: int
    """How many gates the rollout has in all: they share what may err."""

    treated: list[Member]
    control: list[Member]
    since_s: float
    until_s: float

    @property
    def devices(self) -> frozenset[str]:
        """All devices that are looked at."""
        return frozenset(member.device for member in (*self.treated, *self.control))

    @property
    def spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The time that is looked at, and by what devices are known from before."""
        began_s = self.row.created_at_s
        before = began_s - BEFORE_S, began_s
        if not self.control:
            # The same hours of an earlier day: nothing else stands for how a day goes.
            days = math.ceil((self.until_s - began_s) / BEFORE_S)
            before = self.since_s - days * BEFORE_S, self.until_s - days * BEFORE_S
        return (self.since_s, self.until_s), before


class GateLooks:
    """Looks at gates.

    Args:
        database: The control state.
        telemetry: What devices measured.
        preflight: Reads the packages of releases.
        clock: Wall time.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        preflight: Preflight,
        clock: Clock,
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._references = references(preflight)
        self._clock = clock

    def look(self, rollout: str) -> None:
        """Look at the gates of a rollout if it is time to.

        Args:
            rollout: Its identifier.

        Raises:
            DatabaseError: The database does not answer; nothing was saved.
        """
        self._note_away(rollout)
        due = self._due(rollout)
        if due is None:
            return
        verdicts = {number: self._verdict(gate, due) for number, gate in due.gates.items()}
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            if gates.last_look(transaction, rollout) == due.number - 1:
                gates.save_look(transaction, row, due.number, verdicts, now_s=now_s)
        for number, told in verdicts.items():
            text = due.gates[number].text
            _log.info("rollout %s: gate %s: %s, %s", rollout, text, told.state, told.reason)

    def _note_away(self, rollout: str) -> None:
        """Note who is away when a stage begins: only devices that are online can be chosen."""
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            if row.state != RolloutState.RUNNING or gates.is_noted(transaction, row):
                return
            if not gates.all_gates(transaction, rollout):
                return
        with self._database.transaction() as transaction:
            gates.note_away(transaction, rollouts.get(transaction, rollout, lock=True))

    def _due(self, rollout: str) -> _Due | None:
        """Return what is to be looked at now; None for nothing."""
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            family = gates.all_gates(transaction, rollout)
            asked = [gate for gate in family if gate.stage in {None, row.stage}]
            if not asked or row.control_released or row.state != RolloutState.RUNNING:
                return None
            own = stages.of_rollout(transaction, rollout)[row.stage - 1].soak_s
            soak_s = row.soak_s if own is None else own
            complete_s = row.stage_complete_at_s
            last_s = gates.last_look_s(transaction, rollout)
            since_s = complete_s if complete_s is not None else 0.0
            if row.ran_s < next_look_s(since_s, last_s, soak_s):
                return None
            window_s = max(soak_s, LEAST_WINDOW_S)
            if complete_s is not None:
                window_s = row.ran_s - complete_s
            begin_s = math.ceil((now_s - window_s) / SECONDS_PER_MINUTE) * SECONDS_PER_MINUTE
            until_s = math.floor(now_s / SECONDS_PER_MINUTE) * SECONDS_PER_MINUTE
            treated = gates.with_release(
                transaction, rollout, until_s=now_s if complete_s is not None else begin_s
            )
            # While a stage runs, there may be nobody who had the release all the while.
            if begin_s >= until_s or (complete_s is None and len(treated) < LEAST_DEVICES):
                return None
            transaction.expunge(row)
            return _Due(
                row=row,
                number=gates.last_look(transaction, rollout) + 1,
                gates={gate.number: parse_gate(gate.text) for gate in asked},
                family=len(family),
                treated=treated,
                control=gates.without_release(transaction, rollout),
                since_s=float(begin_s),
                until_s=float(until_s),
            )

    def _verdict(self, gate: Gate, due: _Due) -> Verdict:
        at_level = level(due.number, due.family)
        try:
            told = self._of_classes(gate, due, at_level) if gate.is_shift else None
            if told is None:
                told = self._of_figure(gate, due, at_level)
            if told.state is GateState.HOLD:
                told = replace(told, reason=told.reason + self._wait(gate, due))
        except (FleetError, ArithmeticError) as exc:
            return Verdict(state=GateState.HOLD, reason=f"cannot be asked: {exc}")
        return told

    def _of_figure(self, gate: Gate, due: _Due, at_level: float) -> Verdict:
        after, before = (
            figures(self._telemetry, gate, due.row.model, due.devices, *span) for span in due.spans
        )
        # What measured 0 has no part to grow by. It is left out, and the gate told of it.
        zero = {name for of in (after, before) for name, value in of.items() if value == -math.inf}
        sides = _sides(due, {n: value for n, value in after.items() if n not in zero}, before)
        most = None
        if gate.in_worst_case:
            worst = 1.0 if gate.limit > 0 else 0.0
            treated, _ = _sides(due, dict.fromkeys(before, worst) | after, before)
            most = most_harm(treated, sides[1], at_level / 2.0, falls=gate.limit < 0)
        coverage = _coverage(*sides, due, zero)
        return verdict(gate, _compared(*sides, due), at_level, coverage, most=most)

    def _of_classes(self, gate: Gate, due: _Due, at_level: float) -> Verdict:
        after, before = class_shares(
            self._telemetry, self._references, gate, due.row.model, due.devices, due.spans
        )
        found = {}
        classes = sorted({each for of_device in after.values() for each in of_device})
        for each in classes or [OTHERS]:
            sides = _sides(
                due,
                {device: shares[each] for device, shares in after.items()},
                {device: shares[each] for device, shares in before.items()},
            )
            compared = _compared(*sides, due)
            share = at_level / max(len(classes), 1)
            found[each] = verdict(gate, compared, share, _coverage(*sides, due))
        return of_all_classes(found)

    def _wait(self, gate: Gate, due: _Due) -> str:
        """Say how long it takes until enough devices tell enough, as fast as they measure now."""
        counts = measured(self._telemetry, gate, due.row.model, due.devices, *due.spans[0])
        treated, control = (
            [counts.get(one.device, 0.0) for one in side] for side in (due.treated, due.control)
        )
        wanted = least_values(gate.statistic)
        return wait_text(treated, control, wanted, due.until_s - due.since_s)


def _sides(
    due: _Due, after: Mapping[str, float], before: Mapping[str, float]
) -> tuple[list[Observed], list[Observed]]:
    """Return what devices with the release and without it measured, of those that tell enough."""
    treated, control = (
        [
            Observed(after[one.device], before.get(one.device, math.nan), one.stratum)
            for one in side
            if one.device in after
        ]
        for side in (due.treated, due.control)
    )
    return treated, control


def _compared(treated: list[Observed], control: list[Observed], due: _Due) -> Contrast:
    return contrast(treated, control) if due.control else against_before(treated)


def _coverage(
    treated: list[Observed],
    control: list[Observed],
    due: _Due,
    zero: Collection[str] = (),
) -> Coverage:
    return Coverage(
        treated=len(due.treated),
        control=len(due.control),
        treated_told=len(treated),
        control_told=len(control),
        treated_zero=sum(one.device in zero for one in due.treated),
        control_zero=sum(one.device in zero for one in due.control),
    )


def checked_gates(store: TelemetryStore, texts: Sequence[str]) -> tuple[Gate, ...]:
    """Read gates, and ask each once, so that a misspelt word is told before anything begins.

    Args:
        store: The telemetry.
        texts: As the operator wrote them.

    Raises:
        InvalidRequestError: One cannot be read, is there twice, or asks for what no metric has.
        TelemetryStoreError: The database failed.
    """
    found = tuple(parse_gate(text) for text in texts)
    if len({gate.text for gate in found}) != len(found):
        raise InvalidRequestError("a gate is given twice", remedy="leave one of them out")
    for gate in found:
        try:
            if gate.is_shift:
                check_shift(store, gate)
            else:
                figures(store, gate, "", frozenset({""}), 0.0, SECONDS_PER_MINUTE)
        except (QueryError, UnknownMetricError) as exc:
            raise InvalidRequestError(
                f"gate {gate.text}: {exc.message}", remedy=exc.remedy
            ) from exc
    return found
