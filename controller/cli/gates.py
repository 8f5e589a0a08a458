"""`fleet rollout gates`: what gates of a rollout say, as a table and as drawn intervals."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from controller.cli.arguments import JsonOption
from controller.cli.connecting import connect, tell_cut_off
from controller.cli.lists import time_heading
from controller.cli.named_arguments import RolloutArgument
from controller.cli.output import write_json
from controller.domain.gates.states import GateState
from controller.rollout_schemas import GateLook, ShownGate
from wire.console.output import remark, write, write_lines, write_table
from wire.console.progress import about_text
from wire.console.text import local_time, plain_text

WIDTH: Final = 41
"""Of a drawn interval; an odd number, so that 0 can stand in the middle."""


def rollout_gates(
    context: typer.Context,
    rollout: RolloutArgument,
    looks: Annotated[
        bool, typer.Option("--looks", help="Show every look, not only the last one.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the gates of a rollout say.

    Each gate compares the devices that have the release with those that keep the old one. It passes
    when its whole interval is within what is allowed, and fails when it is beyond. UNSEEN is the
    share of devices that may do otherwise although none was seen that does.

    Examples:
        fleet rollout gates r-7f3a
        fleet rollout gates r-7f3a --looks
    """
    with connect(context) as api:
        found = api.rollouts.gates(rollout)
        tell_cut_off(api)
    if as_json:
        write_json(found)
        return
    if not found.gates:
        remark(f"rollout {found.rollout} has no gates: fleet rollout create --gate sets them")
        return
    write_gates(found.gates, found.next_look_in_s)
    for gate in found.gates:
        if looks and gate.looks:
            write()
            _write_looks(gate)
    if drawn := drawn_gates(found.gates):
        write()
        write_lines(drawn)


def drawn_gates(gates: list[ShownGate]) -> list[str]:
    """Return the last interval of each gate as text, with 0 and what is allowed."""
    return [line for gate in gates for line in _drawn(gate)]


def write_gates(gates: list[ShownGate], next_look_in_s: float | None = None) -> None:
    """Write a line for each gate, with what the last look has shown.

    Args:
        gates: The gates.
        next_look_in_s: When they are looked at next; None if they are not.
    """
    write_table(
        ("GATE", "STATE", "DIFFERENCE", "INTERVAL", "DEVICES", "UNSEEN", _looked_at(gates)),
        [_row(gate) for gate in gates],
        minor=(_looked_at(gates), "DEVICES", "UNSEEN"),
    )
    for gate in gates:
        if gate.looks and _is_to_be_told(gate.looks[-1]):
            write_lines([f"{gate.text}: {plain_text(gate.looks[-1].reason)}"])
    if next_look_in_s is not None:
        when = f"in {about_text(next_look_in_s)} at the earliest" if next_look_in_s else "is due"
        write(f"the next look {'comes ' if next_look_in_s else ''}{when}")


def _is_to_be_told(look: GateLook) -> bool:
    """Tell whether a table does not say all of a look."""
    return look.state is GateState.HOLD or "not counted" in look.reason


def _looked_at(gates: list[ShownGate]) -> str:
    return time_heading("LOOKED AT", (look.at_s for gate in gates for look in gate.looks))


def _row(gate: ShownGate) -> tuple[object, ...]:
    text = gate.text if gate.stage is None else f"{gate.text} in stage {gate.stage}"
    if not gate.looks:
        return text, "waived" if gate.waived else "not looked at yet", "", "", "", "", ""
    last = gate.looks[-1]
    state = f"{last.state}, waived" if gate.waived else str(last.state)
    return (text, state, *_cells(gate, last), local_time(last.at_s))


def _cells(gate: ShownGate, look: GateLook) -> tuple[object, ...]:
    interval = f"{_text(gate, look.low)} to {_text(gate, look.high)}" if _is_told(look) else ""
    old = f"{look.control} old" if look.control or not _is_told(look) else "as before"
    unseen = "" if look.unseen is None else f"up to {100.0 * look.unseen:.2g} %"
    return _text(gate, look.estimate), interval, f"{look.treated} new, {old}", unseen


def _write_looks(gate: ShownGate) -> None:
    write(gate.text)
    write_table(
        ("STAGE", "STATE", "DIFFERENCE", "INTERVAL", "DEVICES", "UNSEEN", _looked_at([gate])),
        [
            (look.stage, look.state, *_cells(gate, look), local_time(look.at_s))
            for look in gate.looks
        ],
        minor=("DEVICES", "UNSEEN"),
    )


def _drawn(gate: ShownGate) -> list[str]:
    """Return the last interval of a gate as a line of text, with 0 and what is allowed."""
    if not gate.looks or not _is_told(gate.looks[-1]):
        return []
    last = gate.looks[-1]
    assert last.low is not None  # noqa: S101 - it is told
    assert last.high is not None  # noqa: S101 - it is told
    assert last.estimate is not None  # noqa: S101 - it is told
    reach = max(abs(last.low), abs(last.high), abs(gate.limit) * 1.25)
    line = [" "] * WIDTH

    def place(value: float) -> int:
        return round((value / reach + 1.0) / 2.0 * (WIDTH - 1))

    for at in range(place(last.low), place(last.high) + 1):
        line[at] = "-"
    line[place(0.0)] = "|"
    line[place(gate.limit)] = "!"
    line[place(last.estimate)] = "o"
    ends = f"{_text(gate, -reach):>9} [", f"] {_text(gate, reach)}"
    return [
        f"{gate.text}: | no difference, ! the limit, o the difference",
        "".join(line).join(ends),
    ]


def _is_told(look: GateLook) -> bool:
    return look.low is not None and look.high is not None and look.estimate is not None


def _text(gate: ShownGate, value: float | None) -> str:
    if value is None:
        return ""
    if not gate.unit:
        return f"{value:+.3g}"
    return f"{100.0 * value:+.3g} {gate.unit}"
