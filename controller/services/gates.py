"""Looks at the gates of rollouts: asks the telemetry, and saves what it says.

Rules:
- A look reads the telemetry outside of any transaction that writes, and is saved by itself. The
  rollout then decides by the last look.
- Time is the controller's. Telemetry has that of the devices' clocks, corrected where these are
  wrong.
- A fault of the telemetry holds the gate, and is told; it never passes one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from controller.domain.gates.language import Gate, parse_gate
from controller.domain.gates.look import Compared, compared, judged, window
from controller.domain.gates.looks import is_end, level
from controller.domain.gates.shift import of_all_classes
from controller.domain.gates.silence import Silence
from controller.domain.gates.states import GateState
from controller.domain.gates.trials import has_trials
from controller.domain.gates.verdicts import Verdict
from controller.domain.gates.waiting import wait_text
from controller.domain.states import RolloutState
from controller.errors import InvalidRequestError
from controller.services import gate_times
from controller.services.gate_figures import figures, least_values, measured
from controller.services.gate_shift import OTHERS, check_shift, class_shares, references
from controller.services.preflight import Preflight
from controller.store import control_group, gates, rollouts, stages
from controller.store.database import Database
from controller.store.rollout_tables import RolloutRow
from telemetry.errors import QueryError, UnknownMetricError
from telemetry.server.question import SECONDS_PER_MINUTE
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.errors import FleetError

_log = logging.getLogger(__name__)


class _Due(NamedTuple):
    """A look that is due."""

    row: RolloutRow
    number: int
    gates: dict[int, Gate]
    """By their number: those that are asked in the stage."""

    family: int
    """How many gates the rollout has in all: they share what may err."""

    ends: int
    """At the end of a soak how many such looks share what is for them; 0 for any other look."""

    of: Compared
    silences: dict[int, list[Silence]]
    """Of earlier looks in the stage, by the number of the gate."""


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
        due = self._due(rollout)
        if due is None:
            return
        verdicts = {number: self._verdict(number, due) for number in due.gates}
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            if gates.last_look(transaction, rollout) == due.number - 1:
                gates.save_look(
                    transaction, row, due.number, verdicts, is_end=due.ends > 0, now_s=now_s
                )
        for number, told in verdicts.items():
            text = due.gates[number].text
            _log.info("rollout %s: gate %s: %s, %s", rollout, text, told.state, told.reason)

    def _due(self, rollout: str) -> _Due | None:
        """Return what is to be looked at now; None for nothing."""
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            family = gates.all_gates(transaction, rollout)
            asked = [gate for gate in family if gate.stage in {None, row.stage}]
            if not asked or row.control_released or row.state != RolloutState.RUNNING:
                return None
            every = stages.of_rollout(transaction, rollout)
            soak_s = gate_times.soak_s(transaction, row)
            complete_s = row.stage_complete_at_s
            last_s = gates.last_look_s(transaction, rollout)
            if row.ran_s < gate_times.due_s(transaction, row):
                return None
            at = window(
                now_s,
                complete_for_s=None if complete_s is None else row.ran_s - complete_s,
                soak_s=soak_s,
            )
            if at is None:
                return None
            of = compared(
                gates.with_release(transaction, rollout, until_s=at.had_s),
                gates.without_release(transaction, rollout),
                at,
                away=gates.away_with_release(transaction, rollout, until_s=at.had_s),
                has_control=control_group.is_planned(transaction, rollout),
                began_s=row.created_at_s,
                under_way=gates.under_way(transaction, rollout, at_s=at.had_s),
            )
            if of is None:
                return None
            at_end = is_end(row.ran_s, complete_s, last_s, soak_s) and row.gate_ends_left > 0
            transaction.expunge(row)
            return _Due(
                row=row,
                number=gates.last_look(transaction, rollout) + 1,
                gates={gate.number: parse_gate(gate.text) for gate in asked},
                family=len(family),
                ends=len(every) if at_end else 0,
                of=of,
                silences=gates.silences(transaction, row),
            )

    def _verdict(self, number: int, due: _Due) -> Verdict:
        gate, earlier = due.gates[number], due.silences.get(number, ())
        at_level = level(due.number, due.family, ends=due.ends)
        try:
            ask = self._of_classes if gate.is_shift else self._of_figure
            told = ask(gate, due, at_level, earlier)
            if told.state is GateState.HOLD:
                told = replace(told, reason=told.reason + self._wait(gate, due))
        except (FleetError, ArithmeticError) as exc:
            return Verdict(state=GateState.HOLD, reason=f"cannot be asked: {exc}")
        return told

    def _of_figure(
        self, gate: Gate, due: _Due, at_level: float, earlier: Sequence[Silence]
    ) -> Verdict:
        of = due.of
        after, before = (
            figures(self._telemetry, gate, due.row.model, of.devices, *span)
            for span in (of.span, of.before)
        )
        late, trials = self._late(gate, due), self._trials(gate, due)
        return judged(gate, of, after, before, late, at_level, earlier, trials=trials)

    def _late(self, gate: Gate, due: _Due) -> frozenset[str]:
        """Return the devices that measured something towards the end, too."""
        of = due.of
        counts = measured(self._telemetry, gate, due.row.model, of.devices, *of.late)
        return frozenset(device for device, count in counts.items() if count > 0)

    def _trials(self, gate: Gate, due: _Due) -> Mapping[str, float]:
        """Return of how many trials each share is, where that is known."""
        of = due.of
        if not has_trials(gate):
            return {}
        counts = measured(self._telemetry, gate, due.row.model, of.devices, *of.span)
        if gate.statistic != "rate":
            return counts
        return dict.fromkeys(counts, of.span[1] - of.span[0])  # each second is one

    def _of_classes(
        self, gate: Gate, due: _Due, at_level: float, earlier: Sequence[Silence]
    ) -> Verdict:
        of, spans = due.of, (due.of.span, due.of.before)
        after, before = class_shares(
            self._telemetry, self._references, gate, due.row.model, of.devices, spans
        )
        late, trials = self._late(gate, due), self._trials(gate, due)
        classes = sorted({each for of_device in after.values() for each in of_device}) or [OTHERS]
        return of_all_classes(
            {
                each: judged(
                    gate, of, _of_class(after, each), _of_class(before, each),
                    late, at_level / len(classes), earlier, trials=trials,
                )
                for each in classes
            }
        )  # fmt: skip

    def _wait(self, gate: Gate, due: _Due) -> str:
        """Say how long it takes until enough devices tell enough, as fast as they measure now."""
        of = due.of
        counts = measured(self._telemetry, gate, due.row.model, of.devices, *of.span)
        treated, control = (
            [counts.get(one.device, 0.0) for one in side] for side in (of.treated, of.control)
        )
        wanted = least_values(gate.statistic)
        return wait_text(treated, control, wanted, of.span[1] - of.span[0])


def _of_class(shares: Mapping[str, Mapping[int, float]], each: int) -> dict[str, float]:
    """Return how often the answers of each device name a class."""
    return {device: of_device[each] for device, of_device in shares.items()}


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
