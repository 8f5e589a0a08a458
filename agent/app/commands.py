"""Answers commands from users on the device.

Rules:
- An answer is bounded. One that would be too long is refused, never cut without notice.
- Only `pin` changes anything. Queries write nothing to disk, unless very many figures wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

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

MAX_ANSWER_BYTES: Final = MAX_LINE_BYTES - 1024
"""Greatest size of the events in one answer; the line has a little more."""


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
        endpoint: Returns the address for applications.
    """

    def __init__(
        self,
        device: str,
        *,
        store: StateStore,
        adaptation: Adaptation,
        pump: TelemetryPump,
        link: Link,
        refusals: Refusals,
        clock: Clock,
        endpoint: Callable[[], str],
    ) -> None:
        self._device = device
        self._store = store
        self._adaptation = adaptation
        self._pump = pump
        self._link = link
        self._refusals = refusals
        self._clock = clock
        self._endpoint = endpoint
        self._commands: dict[str, Callable[[dict[str, Any]], Any]] = {
            "status": self._status,
            "variants": self._variants,
            "why": self._why,
            "figures": self._figures,
            "pin": self._pin,
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
            "pinned": self._adaptation.pinned,
            "policy": to_builtins(self._adaptation.policy),
            "revision": record.revision,
            "phase": record.state.value,
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
