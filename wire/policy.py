"""How a device chooses among its variants: the policy that a desired state carries. Pure values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from wire.codec import to_builtins
from wire.durations import HOUR_S

EVEN: Final = 0.5
"""The lowest probability that a deadline may have; below it, most answers could be late."""


TIME_OF_DAY: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that `adaptive` keeps; the most accurate variant that keeps them serves."""

    min_retention: float = 0.0
    """Least share of the reference's quality."""

    deadline_ms: float | None = None
    """The time within which an answer is useful; None where only the rate counts."""

    deadline_probability: float = 0.95
    """The probability that an answer comes within the deadline."""

    battery_lasts_s: float = 4 * HOUR_S
    """For how long the battery has to last, from the moment at which it begins to discharge; 0 for
    no such aim."""

    battery_until: str | msgspec.UnsetType = msgspec.UNSET
    """Until when the battery has to last, in place of `battery_lasts_s`: a local time of day of the
    device as HH:MM, the next one. Unset as programs write it that do not know it."""

    @property
    def battery_until_s(self) -> float | None:
        """`battery_until` in seconds since midnight; None if it is unset or no time of day."""
        text = "" if isinstance(self.battery_until, msgspec.UnsetType) else self.battery_until
        found = TIME_OF_DAY.fullmatch(text)
        return None if found is None else int(found[1]) * HOUR_S + int(found[2]) * 60.0

    def faults_of_battery(self) -> tuple[str, ...]:
        """Return the faults of the aims for the battery; empty when they are valid."""
        until = not isinstance(self.battery_until, msgspec.UnsetType)
        rules = (
            (
                0.0 <= self.battery_lasts_s < math.inf,
                "objective.battery_lasts_s is negative or not a number",
            ),
            (
                not until or self.battery_until_s is not None,
                "objective.battery_until is not a time of day as 18:00",
            ),
            (
                not until or self.battery_lasts_s == Objective().battery_lasts_s,
                "objective.battery_until and objective.battery_lasts_s contradict each other",
            ),
        )
        return tuple(text for holds, text in rules if not holds)


REPORT_S: Final = (1.0, 3600.0)
"""The bounds on the interval of reports."""

MAX_WEIGHT: Final = 1000.0
MAX_WORKERS: Final = 64


class Sharing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model shares the device with other models, and what it may hold of it."""

    weight: float = 1.0
    """What an answer of this model is worth beside one of the other models."""

    may_park: bool = False
    """Whether the device may stop serving this model, as the last resort for the others."""

    workers: int = 1
    """In how many workers a variant of it should run at once, for throughput; no more than the
    device has processors. Each needs its memory."""

    keep_previous: bool = False
    """Whether the version before stays loaded beside a new one, for requests that name it and for a
    quick way back, as long as memory allows."""

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as one line; empty if it can be."""
        rules = (
            (
                1.0 / MAX_WEIGHT <= self.weight <= MAX_WEIGHT,
                f"sharing.weight is not within {1.0 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
            ),
            (
                1 <= self.workers <= MAX_WORKERS,
                f"sharing.workers is not within 1 to {MAX_WORKERS}",
            ),
        )
        return tuple(text for holds, text in rules if not holds)


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a device chooses among its variants.

    `rules` uses thresholds; `adaptive` uses the objective and what it learns about the device.
    """

    kind: Literal["rules", "adaptive"] = "adaptive"
    hot_headroom: float = 0.85
    """Above this heat the cheapest variant serves."""

    cool_headroom: float = 0.70
    """Below this heat the best variant serves again."""

    low_battery_ratio: float = 0.20
    """Below this charge, while discharging, the cheapest variant serves."""

    ok_battery_ratio: float = 0.30
    low_memory_bytes: int = 64 * 1024 * 1024
    """Below this much free memory the smallest variant serves; `adaptive` keeps this much free."""

    dwell_s: float = 5.0
    """Least time between two switches, unless the present variant must stop serving."""

    objective: Objective | msgspec.UnsetType = msgspec.UNSET
    """What `adaptive` keeps; unset for the default one."""

    report_every_s: float | msgspec.UnsetType = msgspec.UNSET
    """How often the device reports figures, in place of its own setting; the shortest of its models
    counts. Unset for its own setting, and by programs that do not know it."""

    sharing: Sharing | msgspec.UnsetType = msgspec.UNSET
    """How the model shares the device; unset for the default, and by programs that do not know
    it."""

    def faults(self) -> tuple[str, ...]:
        """Return the faults of the policy; empty when it is valid."""
        aim = self.aim
        rules = (
            (self.cool_headroom <= self.hot_headroom, "cool_headroom is above hot_headroom"),
            (
                self.low_battery_ratio <= self.ok_battery_ratio,
                "low_battery_ratio is above ok_battery_ratio",
            ),
            (
                0.0 <= self.low_battery_ratio <= 1.0,
                "low_battery_ratio is not within 0 to 1",
            ),
            (0.0 <= self.ok_battery_ratio <= 1.0, "ok_battery_ratio is not within 0 to 1"),
            (self.low_memory_bytes >= 0, "low_memory_bytes is negative"),
            (0.0 <= self.dwell_s < math.inf, "dwell_s is negative or not a number"),
            (
                isinstance(self.report_every_s, msgspec.UnsetType)
                or REPORT_S[0] <= self.report_every_s <= REPORT_S[1],
                f"report_every_s is not within {REPORT_S[0]:g} to {REPORT_S[1]:g}",
            ),
            (0.0 <= aim.min_retention <= 1.0, "objective.min_retention is not within 0 to 1"),
            (
                aim.deadline_ms is None or 0.0 < aim.deadline_ms < math.inf,
                "objective.deadline_ms is not positive",
            ),
            (
                EVEN <= aim.deadline_probability < 1.0,
                f"objective.deadline_probability is not within {EVEN} to 1",
            ),
        )
        found = tuple(text for holds, text in rules if not holds)
        return found + aim.faults_of_battery() + self.shared.faults()

    @property
    def aim(self) -> Objective:
        """The objective, or the default one."""
        return Objective() if isinstance(self.objective, msgspec.UnsetType) else self.objective

    @property
    def shared(self) -> Sharing:
        """How the model shares the device, or the default."""
        return Sharing() if isinstance(self.sharing, msgspec.UnsetType) else self.sharing

    @property
    def settings(self) -> dict[str, object]:
        """All settings that count by name, those of the default objective and sharing dotted."""
        plain: dict[str, object] = to_builtins(self)
        plain.pop("objective", None)
        plain.pop("sharing", None)
        aims: dict[str, object] = to_builtins(self.aim)
        if "battery_until" in aims:
            del aims["battery_lasts_s"]
        shared = msgspec.structs.asdict(self.shared)
        return (
            plain
            | {f"objective.{key}": value for key, value in aims.items()}
            | {f"sharing.{key}": value for key, value in shared.items()}
        )


def report_every_s(own_s: float, policies: Iterable[PolicySpec]) -> float:
    """Return how often a device reports figures.

    Args:
        own_s: Its own setting.
        policies: Those of its models.

    Returns:
        The shortest interval that a policy sets; its own if none sets one, or none that can be.
    """
    told = [
        policy.report_every_s
        for policy in policies
        if not isinstance(policy.report_every_s, msgspec.UnsetType)
    ]
    possible = [each_s for each_s in told if REPORT_S[0] <= each_s <= REPORT_S[1]]
    return min(possible, default=own_s)


def changes(before: PolicySpec, after: PolicySpec) -> tuple[dict[str, object], dict[str, object]]:
    """Return what differs between two policies.

    Args:
        before: The older one.
        after: The newer one.

    Returns:
        The settings that differ, by name, as they were and as they are; None for none.
    """
    old, new = before.settings, after.settings
    names = [name for name in {**new, **old} if new.get(name) != old.get(name)]
    return {n: old.get(n) for n in names}, {n: new.get(n) for n in names}
