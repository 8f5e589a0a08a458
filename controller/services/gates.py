"""Looks at the gates of rollouts: asks the telemetry, and saves what it says.

Rules:
- A look reads the telemetry outside of any transaction that writes, and is saved by itself. The
  rollout then decides by the last look.
- All devices are looked at over the same time, as the controller's clock has it: since the stage
  was complete, or else over the last soak time, then only those that had the release all the while.
  The minute that still runs does not count.
- The control group, and the devices that have not begun, are compared with those that have the
  release. Without either, devices are compared with themselves in the same hours of the last day
  that ended before the rollout.
- A figure of a device counts if enough was measured for it (`LEAST_VALUES`).
- A fault of the telemetry holds the gate, and is told; it never passes one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from controller.domain.gates.contrast import (
    Observed,
    against_before,
    contrast,
)
from controller.domain.gates.language import Gate, parse_gate
from controller.domain.gates.looks import level, next_look_s
from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.gates.verdicts import Coverage, Verdict, verdict
from controller.domain.states import RolloutState
from controller.errors import InvalidRequestError
from controller.store import gates, rollouts, stages
from controller.store.database import Database
from controller.store.gates import Member
from controller.store.tables import RolloutRow
from telemetry.errors import QueryError, UnknownMetricError
from telemetry.metrics import own_attributes
from telemetry.server.query import Query, run
from telemetry.server.question import DEVICE, MODEL, QUANTILE, SECONDS_PER_MINUTE
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.errors import FleetError

BEFORE_S: Final = 86_400.0
"""Devices are known by what they measured on the day before: they do not do the same at night."""

LEAST_WINDOW_S: Final = 600.0
"""Over how long devices are looked at, at least, while a stage still runs."""

LEAST_VALUES: Final = 20
"""Requests that a figure of a device rests on; of a percentile, five must lie beyond it."""

REQUESTS: Final = "inference_requests_total"
_BEYOND: Final = 5
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


class GateLooks:
    """Looks at gates.

    Args:
        database: The control state.
        telemetry: What devices measured.
        clock: Wall time.
    """

    def __init__(self, database: Database, telemetry: TelemetryStore, clock: Clock) -> None:
        self._database = database
        self._telemetry = telemetry
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
        verdicts = {number: self._verdict(gate, due) for number, gate in due.gates.items()}
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            if gates.last_look(transaction, rollout) == due.number - 1:
                gates.save_look(transaction, row, due.number, verdicts, now_s=now_s)
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
            treated, control = self._observed(gate, due)
            coverage = Coverage(
                treated=len(due.treated),
                control=len(due.control),
                treated_told=len(treated),
                control_told=len(control),
            )
            found = contrast(treated, control) if due.control else against_before(treated)
            return verdict(gate, found, at_level, coverage)
        except (FleetError, ArithmeticError) as exc:
            return Verdict(state=GateState.HOLD, reason=f"cannot be asked: {exc}")

    def _observed(self, gate: Gate, due: _Due) -> tuple[list[Observed], list[Observed]]:
        """Return what devices with the release and without it measured, of those that tell enough.

        Raises:
            FleetError: The telemetry does not answer.
        """
        members = [*due.treated, *due.control]
        names = frozenset(member.device for member in members)
        model, began_s = due.row.model, due.row.created_at_s
        after = figures(self._telemetry, gate, model, names, due.since_s, due.until_s)
        span = began_s - BEFORE_S, began_s
        if not due.control:
            # The same hours of an earlier day: nothing else stands for how a day goes.
            days = math.ceil((due.until_s - began_s) / BEFORE_S)
            span = due.since_s - days * BEFORE_S, due.until_s - days * BEFORE_S
        before = figures(self._telemetry, gate, model, names, *span)
        treated, control = (
            [
                Observed(after[one.device], before.get(one.device, math.nan), one.stratum)
                for one in side
                if one.device in after
            ]
            for side in (due.treated, due.control)
        )
        return treated, control


def figures(
    store: TelemetryStore,
    gate: Gate,
    model: str,
    devices: frozenset[str],
    since_s: float,
    until_s: float,
) -> dict[str, float]:
    """Return the figure of each device in which enough was measured.

    Args:
        store: The telemetry.
        gate: Which figure; its logarithm if the gate compares parts.
        model: The model that the metric is about, if it is about one.
        devices: Which devices.
        since_s: Wall time, inclusive.
        until_s: Wall time, exclusive.

    Raises:
        FleetError: The telemetry does not answer, or not this.
    """
    about = Query(
        metric=gate.metric,
        group_by=(DEVICE,),
        where=gate.where + of_model(gate.metric, model),
        devices=devices,
        since_s=max(since_s, 0.0),
        until_s=until_s,
    )
    if gate.over:
        found = _asked(store, about, "total")
        over = replace(about, metric=gate.over, where=of_model(gate.over, model))
        whole = _asked(store, over, "total")
        shares = {name: found.get(name, (0.0,))[0] / of for name, (of,) in whole.items() if of > 0}
        return {name: share for name, share in shares.items() if whole[name][0] >= LEAST_VALUES}
    if gate.statistic == "rate":
        # Devices report no counter that stands still; those that answered requests counted 0.
        over = replace(about, metric=REQUESTS, where=of_model(REQUESTS, model))
        busy = {name for name, (number,) in _asked(store, over, "total").items() if number > 0}
        found = _asked(store, about, "rate")
        values = dict.fromkeys(busy, 0.0) | {name: row[0] for name, row in found.items()}
    else:
        wanted = least_values(gate.statistic)
        rows = _asked(store, about, gate.statistic, "count")
        values = {name: value for name, (value, count) in rows.items() if count >= wanted}
    if gate.is_relative:
        return {name: math.log(value) for name, value in values.items() if value > 0.0}
    return values


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
            figures(store, gate, "", frozenset({""}), 0.0, SECONDS_PER_MINUTE)
        except (QueryError, UnknownMetricError) as exc:
            raise InvalidRequestError(
                f"gate {gate.text}: {exc.message}", remedy=exc.remedy
            ) from exc
    return found


def of_model(metric: str, model: str) -> tuple[tuple[str, str], ...]:
    """Return the condition that a metric is about a model, if it is about one."""
    named = {"release", "variant"} <= own_attributes(metric)
    return ((MODEL, model),) if model and named else ()


def least_values(statistic: str) -> float:
    """Return how many values a statistic of a device rests on at least."""
    if QUANTILE.fullmatch(statistic) is None:
        return float(LEAST_VALUES)
    q = float(statistic[1:]) / 100.0
    beyond = min(q, 1.0 - q)
    return max(LEAST_VALUES, _BEYOND / beyond if beyond > 0.0 else LEAST_VALUES)


def _asked(
    store: TelemetryStore, query: Query, *statistics: str
) -> Mapping[str, tuple[float, ...]]:
    table = run(store, replace(query, statistics=statistics))
    return {
        str(row[0]): tuple(float(cell) for cell in row[1:] if isinstance(cell, int | float))
        for row in table.rows
        if None not in row
    }
