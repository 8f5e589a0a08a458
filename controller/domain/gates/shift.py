"""What a gate says of how often answers name each class, from what is said of each class. Pure.

Rules:
- The gate fails if it fails for any class, and passes if it passes for all. The classes share the
  chance to err, as gates do.
- What is shown is the class that decides: of those in the worst state, the one that moved most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from controller.domain.gates.states import GateState
from controller.domain.gates.verdicts import Verdict

_ORDER: Final = (GateState.FAIL, GateState.HOLD, GateState.PASS)


def of_all_classes(verdicts: Mapping[int, Verdict]) -> Verdict:
    """Return what a gate says of all classes.

    Args:
        verdicts: Of each class, by its number; below 0 of all that are not compared apart. At least
            one.

    Returns:
        The verdict, whose reason names the class.
    """
    number, told = min(
        verdicts.items(),
        key=lambda item: (_ORDER.index(item[1].state), -abs(item[1].estimate or 0.0), item[0]),
    )
    if told.estimate is None:
        return told
    name = f"class {number}" if number >= 0 else "all other classes"
    return replace(told, reason=f"{name}: {told.reason}")
