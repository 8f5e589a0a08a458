"""Answers commands from users on the device.

Rules:
- An answer is bounded. One that would be too long is refused, never cut without notice.
- Only `pin` and `override` change anything. Queries write nothing to disk, unless very many figures
  wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from agent.app.control import MAX_LINE_BYTES
from agent.app.refusals import Refusals
from agent.errors import ControlError
from agent.install.store import StateStore
from agent.link.connection import Link
from agent.link.telemetry import TelemetryPump
from agent.select.adaptation import Adaptation
from telemetry.device.spool import EVENTS_KEPT
from wire.clock import Clock
from wire.codec import to_builtins
from wire.progress import TransferProgress

if TYPE_CHECKING:
    from agent.install.budget.budgets import Budgets
    from agent.install.hooks.effects import HookedEffects

MAX_ANSWER_BYTES: Final = MAX_LINE_BYTES - 1024
"""Greatest size of the events in one answer; the line has a little more."""

MAX_OVERRIDE_S: Final = 86_400.0
"""An override that nobody remembers must not outlast the day."""


class Commands:
    """Answers commands.

    Args:
        device: This device.
        store: Knows what the device should run.
        adaptation: Knows what it runs.
        pump: Has the events.
        link: Knows whether it is connected, or why not.
        refusals: Knows what the device refused.
        clock: For the time of the oldest event.
        hooked: Knows what holds an install; None if nothing can.
        transfer: Returns how far the transfer of a package is; None if none runs.
        budgets: Knows what packages cost; None if nothing is bounded.
        endpoint: Returns the address for applications.
        deferred: Returns how many deferrable requests wait.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it asks
        self,
        device: str,
        *,
        store: StateStore,
        adaptation: Adaptation,
        pump: TelemetryPump,
        link: Link,
        refusals: Refusals,
        clock: Clock,
        hooked: HookedEffects | None,
        transfer: Callable[[], TransferProgress | None],
        budgets: Budgets | None,
        endpoint: Callable[[], str],
        deferred: Callable[[], int],
    ) -> None:
        self._device = device
        self._store = store
        self._adaptation = adaptation
        self._pump = pump
        self._link = link
        self._refusals = refusals
        self._clock = clock
        self._hooked = hooked
        self._transfer = transfer
        self._budgets = budgets
        self._endpoint = endpoint
        self._deferred = deferred
        self._commands: dict[str, Callable[[dict[str, Any]], Any]] = {
            "status": self._status,
            "variants": self._variants,
            "why": self._why,
            "figures": self._figures,
            "pin": self._pin,
            "override": self._override,
        }

    def answer(self, command: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        """Answer a command.

        Args:
            command: Its name.
            arguments: Its arguments.

        Returns:
            A value that JSON can hold.

        Raises:
            ControlError: There is no such command, or its arguments are wrong.
        """
        if command not in self._commands:
            raise ControlError(f"there is no command {command!r}")
        return self._commands[command](arguments)

    def _status(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        record = self._store.state
        digest, variant = self._adaptation.active()
        decision = self._adaptation.decision
        connected = self._link.is_connected()
        transfer = self._transfer()
        return {
            "device": self._device,
            "connected": connected,
            "outage": "" if connected else self._link.outage.reason,
            "refused": self._refusals.last,
            "endpoint": self._endpoint(),
            "release": digest,
            "variant": variant,
            "reason": decision.reason if decision else "",
            "pressures": sorted(decision.state.pressures) if decision else [],
            "levers": to_builtins(decision.levers) if decision else None,
            "deferred": self._deferred(),
            "pinned": self._adaptation.pinned,
            "policy": to_builtins(self._adaptation.policy),
            "revision": record.revision,
            "phase": record.state.value,
            "transfer": _with_rest(transfer) if transfer is not None else None,
            "waits_for": self._hooked.waits_for() if self._hooked else "",
            "override_s": self._hooked.override.rest_s if self._hooked else None,
            "budgets": self._budgets.status() if self._budgets else [],
            "target": f"{record.target.name}:{record.target.version}" if record.target else None,
            "last_report": to_builtins(record.report),
            "health": to_builtins(self._adaptation.health),
        }

    def _variants(self, _arguments: dict[str, Any]) -> list[dict[str, Any]]:
        decision = self._adaptation.decision
        verdicts = decision.verdicts if decision else {}
        digest, serving = self._adaptation.active()
        kept = [
            to_builtins(c) | {"serving": c.name == serving, "verdict": verdicts.get(c.name, "")}
            for c in self._adaptation.candidates()
        ]
        dropped = [
            {"name": name, "serving": False, "benched": reason, "verdict": f"dropped: {reason}"}
            for name, reason in self._store.state.dropped.get(digest or "", {}).items()
        ]
        return kept + dropped

    def _why(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        within_s = arguments.get("within_s", 3600)
        if not isinstance(within_s, int | float) or not within_s >= 0:
            raise ControlError("within_s is not a number of seconds")
        since_s = self._clock.now_s() - within_s
        events = [to_builtins(e) for e in self._pump.events((), since_s, EVENTS_KEPT)]
        size_bytes = sum(len(json.dumps(event)) + 2 for event in events)
        if size_bytes > MAX_ANSWER_BYTES:
            raise ControlError(
                f"{len(events)} events are too much for one answer",
                remedy="ask for a shorter time, such as --since 15m",
            )
        return events

    def _figures(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        release, variant = self._adaptation.active()
        served = self._adaptation.served()
        return {
            "pid": os.getpid(),
            "release": release,
            "variant": variant,
            "declared_ms": self._adaptation.declared_ms(),
            "requests": served.requests,
            "answered": served.answered,
            "compute_s": served.compute_s,
        }

    def _pin(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = arguments.get("variant")
        names = {c.name for c in self._adaptation.candidates()}
        if name is not None and name not in names:
            raise ControlError(
                f"there is no variant {name!r}",
                remedy=f"choose one of {', '.join(sorted(names)) or 'none'}",
            )
        self._store.update(pinned=name)
        self._adaptation.pinned = name
        self._adaptation.tick(self._adaptation.health)
        decision = self._adaptation.decision
        return {
            "pinned": name,
            "variant": self._adaptation.active()[1],
            "verdict": decision.verdicts.get(name or "", "") if decision else "",
        }

    def _override(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._hooked is None:
            raise ControlError(
                "this device has no hooks, and its installs may begin at any time, unbounded",
                remedy="set `directory` below [hooks], `window` below [install], or "
                "[[delivery.networks]], in agent.toml",
            )
        override, for_s = self._hooked.override, arguments.get("for_s")
        if for_s is None:
            override.clear()
        elif isinstance(for_s, int | float) and 0 < for_s <= MAX_OVERRIDE_S:
            override.allow(for_s)
        else:
            raise ControlError("an override is for more than 0 s, and for 1d at most")
        return {"override_s": override.rest_s, "waits_for": self._hooked.waits_for()}


def _with_rest(transfer: TransferProgress) -> dict[str, Any]:
    return {**to_builtins(transfer), "rest_s": transfer.rest_s}
