"""Why a variant serves and the others do not, in words for people.

Rules:
- Pure. Two numbers that look the same are no reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agent.select.decisions import apart
from agent.select.limits import Fault
from agent.select.outlook import PARKED, Prediction

AS_ACCURATE: Final = 0.001
"""Retentions that differ by less count as equal: evaluation sets are too small to tell."""

OFTEN_PER_MIN: Final = 0.1
"""Less often, it tells nothing that conditions became too bad."""

LONGEST_TEXT: Final = 120
"""Longer lists of faults are cut after the first one."""


def objection(o: Prediction, serving: Prediction) -> str:
    """Return why a variant may not replace the serving one, or an empty text."""
    urgent = [fault.text for fault in o.faults if fault.urgent]
    if urgent:
        return urgent[0]
    if o.lasting and is_more_work(o, serving):
        return f"over the last minutes: {o.lasting[0].text}"
    return ""


def is_more_work(o: Prediction, serving: Prediction) -> bool:
    """Tell whether a variant takes longer for an answer than the serving one."""
    if o is serving:
        return False
    ours, theirs = o.candidate.latency_p50_ms, serving.candidate.latency_p50_ms
    return ours is None or theirs is None or ours > theirs


DEVICE: Final = frozenset({"heat", "memory", "battery"})
"""Kinds of faults that all models of a device cause together."""

FIRST: Final = "no variant of this release serves yet"


def first(chosen: Prediction, *, is_hot: bool) -> str:
    """Return why the first variant serves."""
    if is_hot:
        return "no variant serves yet, and the board is warm: the least work begins"
    if not chosen.faults:
        return FIRST
    return f"no variant serves yet, and this one loses least; {chosen.faults[0].text}"


def leaves(serving: Prediction, fault: Fault, chosen: Prediction) -> str:
    """Return why the serving variant gives way to another one."""
    if serving.candidate.name == PARKED:
        return "the other models leave room for it again"
    if chosen.candidate.name == PARKED:
        return f"parked, as the last resort for the other models; {fault.text}"
    reason = f"{serving.candidate.name}: {fault.text}"
    return f"{reason}; this one loses less" if chosen.faults else reason


def stays(serving: Prediction) -> str:
    """Return why the serving variant goes on."""
    if serving.candidate.name == PARKED:
        return "parked: the other models leave no room for it yet"
    if serving.faults:
        return f"no variant would do better; {serving.faults[0].text}"
    return "no other variant has been worth a switch"


def better(best: Prediction, serving: Prediction) -> str:
    """Return why a variant replaces the serving one."""
    name = serving.candidate.name
    if best.candidate.name == PARKED:
        return "parked, as the last resort for the other models"
    relieved = _relieved(serving, best)
    if relieved is not None:
        return leaves(serving, relieved, best)
    gain = best.retention - serving.retention
    if gain > AS_ACCURATE:
        return f"keeps {gain:.2%} more of the quality than {name}"
    if best.in_time > serving.in_time + AS_ACCURATE:
        return f"{best.in_time:.1%} in time, {serving.in_time:.1%} with {name}"
    if best.load < serving.load:
        return f"as accurate as {name} with less work"
    return f"loses less than {name}"


def _relieved(serving: Prediction, best: Prediction) -> Fault | None:
    """Return the fault of which a switch takes most away; None if it takes nothing away."""
    left = {fault.kind: fault.cost for fault in best.faults}
    gains = [(fault.cost - left.get(fault.kind, 0.0), fault) for fault in serving.faults]
    gain, fault = max(gains, key=lambda each: each[0], default=(0.0, None))
    return fault if gain > 0.0 else None


def verdict(
    o: Prediction, winner: Prediction | None, serving: Prediction | None, reason: str
) -> str:
    """Return why a variant does not serve.

    Args:
        o: The variant.
        winner: The one that does; None if none may.
        serving: The one that served before; None for none.
        reason: Why the winner serves.
    """
    against = objection(o, serving) if serving is not None and o is not serving else ""
    if against or o.faults:
        return against or _listed([fault.text for fault in o.faults])
    if winner is None or reason.startswith(("pinned", "held")):
        return reason
    return _compared(o, winner)


def _compared(o: Prediction, winner: Prediction) -> str:
    if o.retention < winner.retention - AS_ACCURATE:
        less, more = apart(o.retention, winner.retention, 4)
        return f"less accurate: {less} against {more}"
    turns_per_min, fewer = (60.0 * each.turns_per_s for each in (o, winner))
    if turns_per_min >= fewer + OFTEN_PER_MIN:
        return f"conditions became too bad for it {turns_per_min:.1f} times a minute"
    if o.in_time < winner.in_time - AS_ACCURATE:
        less, more = apart(100.0 * o.in_time, 100.0 * winner.in_time, 1)
        return f"{less} % would be in time, {more} % with {winner.candidate.name}"
    ours, theirs = f"{o.load:.3g}", f"{winner.load:.3g}"
    if ours == theirs:
        gains = "and nothing is gained at this load"
        return f"no better than {winner.candidate.name}: as accurate, {gains}"
    if o.load > winner.load:
        return f"more work: {ours} of the processor against {theirs}"
    return "not worth a switch yet"


def _listed(faults: list[str]) -> str:
    text = "; ".join(faults)
    return text if len(text) <= LONGEST_TEXT else f"{faults[0]}; and {len(faults) - 1} more"


def shared(fault: Fault, others: int) -> str:
    """Return what several models together do to the device.

    Args:
        fault: Of a variant beside the others.
        others: How many other models serve.
    """
    return f"{fault.text} with {'both' if others == 1 else 'all of them'}"


def yields(fault: str, others: Sequence[str]) -> str:
    """Return that a model gives way to others.

    Args:
        fault: What they do to the device together.
        others: The names of those it yields to, the one that takes most first.
    """
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"yields to {others[0]}{more}: {fault}"
