"""Gates of rollouts as the API shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from controller.domain.gates.language import parse_gate
from controller.domain.gates.states import GateState
from controller.rollout_schemas import GateLook, RolloutGates, ShownGate
from controller.services import gate_times
from controller.store import control_group, gates
from controller.store.database import Transaction
from controller.store.gate_tables import GateLookRow
from controller.store.rollout_tables import RolloutRow

MAX_LOOKS: Final = 10_000


def last(transaction: Transaction, row: RolloutRow) -> list[ShownGate]:
    """Return the gates of a rollout, each with the last look at it.

    Args:
        transaction: The transaction.
        row: The rollout.
    """
    shown = whole(transaction, row).gates
    for gate in shown:
        gate.looks = gate.looks[-1:]
    return shown


def whole(transaction: Transaction, row: RolloutRow) -> RolloutGates:
    """Return the gates of a rollout, each with every look at it.

    Args:
        transaction: The transaction.
        row: The rollout.
    """
    looks: dict[int, list[GateLookRow]] = {}
    for look in gates.looks(transaction, row.id, limit=MAX_LOOKS):
        looks.setdefault(look.number, []).append(look)
    shown = []
    for number, view in enumerate(gates.views(transaction, row), start=1):
        gate = parse_gate(view.text)
        each = ShownGate(
            text=view.text,
            limit=gate.limit,
            unit=gate.unit,
            stage=view.stage,
            waived=view.is_waived,
        )
        each.looks = list(_looks(looks.get(number, [])))
        shown.append(each)
    control = control_group.count(transaction, row.id) if shown else 0
    return RolloutGates(
        rollout=row.id,
        control=control,
        gates=shown,
        next_look_in_s=gate_times.next_look_in_s(transaction, row),
    )


def _looks(rows: Iterable[GateLookRow]) -> Iterable[GateLook]:
    for row in rows:
        yield GateLook(
            at_s=row.at_s,
            stage=row.stage,
            state=GateState(row.state),
            reason=row.reason,
            estimate=row.estimate,
            low=row.low,
            high=row.high,
            treated=row.treated,
            control=row.control,
            unseen=row.unseen,
        )
