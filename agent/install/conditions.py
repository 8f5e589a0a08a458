"""What must hold before an install may begin, from the table `[install]` of `agent.toml`.

Rules:
- An install that may not begin yet waits; it does not fail.
- What is mending or going back never waits: the repair of a lost release, and an install of a
  package that is whole on the device, which is the release before.
- What is not known holds nothing back, but a battery counts as in use unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from agent.install.window import Local, opens_s
from wire.health import HealthSnapshot
from wire.windows import parse_window

if TYPE_CHECKING:
    from agent.install.store import ModelStore

LOOK_S: Final = 5.0
"""Time between two looks at the clock and the battery."""

WHOLE_PERCENT: Final = 100.0
SEVERE: Final = 1.0
"""Headroom at which the processor is slowed down severely."""


class ConditionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When installs may begin, and what they may do early."""

    window: str = ""
    """Hours of the local day, such as `01:00-05:00` or `22:00-04:00`; empty for all of it."""

    min_battery_percent: float = 0.0
    """Least charge of a battery that is in use; on mains it does not count. 0 for no bound."""

    early: bool = True
    """Whether, where nothing serves, the first variant serves while the others come. A device with
    hooks never does that."""

    @property
    def has_conditions(self) -> bool:
        """Whether an install may have to wait before it begins."""
        return bool(self.window) or self.min_battery_percent > 0

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as one line; nothing if the settings can be used."""
        lines = []
        if self.window and parse_window(self.window) is None:
            lines.append("install.window is not two different times, such as 01:00-05:00")
        if not 0 <= self.min_battery_percent <= WHOLE_PERCENT:
            lines.append("install.min_battery_percent is not within 0 to 100")
        return tuple(lines)


class Later(NamedTuple):
    """An install may not begin yet."""

    why: str
    """One line for people, with the time when it goes on if that is known."""

    look_s: float
    """After this time it may be otherwise."""


class Conditions:
    """Whether the install that is under way may begin.

    Args:
        settings: When installs may begin.
        store: Knows what is being installed.
        is_whole: Tells whether a package is whole on this device.
        health: Returns the newest readings.
        now_s: Returns wall time, seconds since 1970.
        local: Converts it to what the clock on the wall shows.
    """

    def __init__(
        self,
        settings: ConditionSettings,
        *,
        store: ModelStore,
        is_whole: Callable[[str], bool],
        health: Callable[[], HealthSnapshot],
        now_s: Callable[[], float],
        local: Local,
    ) -> None:
        self._settings = settings
        self._store = store
        self._is_whole = is_whole
        self._health = health
        self._now_s = now_s
        self._local = local

    def later(self) -> Later | None:
        """Return why the install may not begin yet, or None."""
        record = self._store.state
        if record.repairing or (record.target and self._is_whole(record.target.digest)):
            return None
        return out_of_window(self._settings.window, self._now_s(), self._local) or low_battery(
            self._settings.min_battery_percent, self._health()
        )


def out_of_window(text: str, now_s: float, local: Local) -> Later | None:
    """Return why no install may begin at a time of the day, or None.

    Args:
        text: The window, as checked; empty for none.
        now_s: Wall time, seconds since 1970.
        local: Converts it.
    """
    window = parse_window(text)
    if window is None or window.holds(local(now_s)):
        return None
    next_s = opens_s(window, now_s, local)
    if next_s is None:
        return Later(f"no install begins outside {text}", LOOK_S)
    # The clock may be set meanwhile, so nobody sleeps until then.
    return Later(
        f"no install begins outside {text}; it goes on at {_shown(next_s, local)}",
        min(max(next_s - now_s, 1.0), LOOK_S),
    )


def out_of_windows(texts: Sequence[str], now_s: float, local: Local) -> Later | None:
    """Return why nothing may be activated at a time of the day, or None.

    Args:
        texts: The windows of a rollout, as checked; without one it may at any time.
        now_s: Wall time, seconds since 1970.
        local: Converts it.
    """
    held = [out_of_window(text, now_s, local) for text in texts]
    shut = [later for later in held if later is not None]
    if not held or len(shut) < len(held):
        return None
    windows = [window for text in texts if (window := parse_window(text)) is not None]
    opens = [at_s for each in windows if (at_s := opens_s(each, now_s, local)) is not None]
    when = f"; it goes on at {_shown(min(opens), local)}" if opens else ""
    return Later(
        f"the rollout activates it within {', '.join(texts)}{when}",
        min(later.look_s for later in shut),
    )


def low_battery(least_percent: float, health: HealthSnapshot) -> Later | None:
    """Return why no install may begin at a charge of the battery, or None.

    Args:
        least_percent: Least charge; 0 for no bound.
        health: The newest readings.
    """
    ratio = health.battery_ratio
    if ratio is None or health.battery_discharging is False:
        return None
    percent = WHOLE_PERCENT * ratio
    if percent >= least_percent:
        return None
    return Later(
        f"the battery has {percent:.0f} %, and no install begins below {least_percent:g} %; "
        "it goes on when the battery is charged or on mains",
        LOOK_S,
    )


def _shown(at_s: float, local: Local) -> str:
    return local(at_s).strftime("%Y-%m-%d %H:%M %z").rstrip()


def tired(health: HealthSnapshot) -> str:
    """Return why a device should do nothing now but serve; empty if it may.

    Args:
        health: The newest readings. What is not known is no reason.
    """
    if health.battery_discharging:
        return "this device runs on its battery"
    if health.throttled or (health.headroom is not None and health.headroom >= SEVERE):
        return "this device is too hot"
    return ""
