"""Answers commands from users on the device.

Rules:
- An answer is bounded. One that would be too long is refused, never cut without notice.
- Only `pin` and `override` change anything. Queries write nothing to disk, unless very many figures
  wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from agent.app.control import MAX_LINE_BYTES
from agent.app.models import Model, Models
from agent.app.refusals import Refusals
from agent.errors import ControlError
from agent.install.store import StateStore
from agent.link.connection import Link
from agent.link.telemetry import TelemetryPump
from agent.select.adaptations import Adaptations
from agent.trust.keeper import MetadataTrust
from telemetry.about import is_about
from telemetry.device.spool import EVENTS_KEPT
from wire.clock import Clock
from wire.codec import to_builtins
from wire.policy import PolicySpec
from wire.progress import TransferProgress

if TYPE_CHECKING:
    from agent.install.budget.budgets import Budgets
    from agent.install.hooks.override import Override

MAX_ANSWER_BYTES: Final = MAX_LINE_BYTES - 1024
"""Greatest size of the events in one answer; the line has a little more."""

NO_MODEL: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "release": None,
        "package": None,
        "variant": None,
        "workers": 0,
        "processors": 0,
        "kept": None,
        "reason": "",
        "pressures": [],
        "levers": None,
        "pinned": None,
        "policy": to_builtins(PolicySpec()),
        "own_policy": False,
        "phase": "idle",
        "transfer": None,
        "waits_for": "",
        "target": None,
        "last_report": None,
    }
)
"""What the status of a device tells that has no model."""

MAX_OVERRIDE_S: Final = 86_400.0
"""An override that nobody remembers must not outlast the day."""

REFUSED: Final = "the broker refuses what this device sends: it may have been shut out"


class Commands:
    """Answers commands.

    Args:
        device: This device.
        store: Knows what the device should run.
        models: Know what each runs.
        adaptations: Have the newest readings.
        pump: Has the events.
        link: Knows whether it is connected, or why not.
        refusals: Knows what the device refused.
        clock: For the time of the oldest event.
        override: Lets an install go on that something holds; None if nothing can.
        budgets: Knows what packages cost; None if nothing is bounded.
        endpoint: Returns the address for applications.
        deferred: Returns how many deferrable requests wait.
        shadows: Returns by model what runs beside the release that serves.
        own_policy: Whether the policy is the device's own, of its `agent.toml`.
        metadata: Knows what is trusted; None where a trust file takes its place.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it asks
        self,
        device: str,
        *,
        store: StateStore,
        models: Models,
        adaptations: Adaptations,
        pump: TelemetryPump,
        link: Link,
        refusals: Refusals,
        clock: Clock,
        override: Override | None,
        budgets: Budgets | None,
        endpoint: Callable[[], str],
        deferred: Callable[[], int],
        shadows: Callable[[], dict[str, str]] = dict,
        own_policy: bool = False,
        metadata: MetadataTrust | None = None,
    ) -> None:
        self._device = device
        self._store = store
        self._models = models
        self._adaptations = adaptations
        self._pump = pump
        self._link = link
        self._refusals = refusals
        self._clock = clock
        self._override_of_device = override
        self._budgets = budgets
        self._endpoint = endpoint
        self._deferred = deferred
        self._shadows = shadows
        self._own_policy = own_policy
        self._metadata = metadata
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

    def _status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        # A broker that shut the device out may still let it connect.
        is_refused = self._link.is_refused()
        connected = self._link.is_connected() and not is_refused
        wanted = arguments.get("model")
        shown = [self._models.named(wanted)] if wanted is not None else list(self._models)
        models = [self._of_model(model) for model in shown]
        # Of one model the fields stand beside those of the device, too.
        flat = models[0] if len(models) == 1 else {}
        return {
            **(flat if models else NO_MODEL),
            "device": self._device,
            "connected": connected,
            "outage": ""
            if connected
            else self._link.outage.reason or (REFUSED if is_refused else ""),
            "refused": self._refusals.last,
            "endpoint": self._endpoint(),
            "deferred": self._deferred(),
            "revision": self._store.state.revision,
            "override_s": self._override_of_device.rest_s if self._override_of_device else None,
            "budgets": self._budgets.status() if self._budgets else [],
            "trust": _trust(self._metadata),
            "health": to_builtins(self._adaptations.health),
            "models": models,
        }

    def _of_model(self, model: Model) -> dict[str, Any]:
        record, adaptation, router = model.store.state, model.adaptation, model.model_server.router
        digest, variant = adaptation.in_service()
        active, decision = model.model_server.active, adaptation.decision
        resting = f"{model.name}:{adaptation.version}" if digest else None
        transfer, held = model.machine.transfer(), model.hooked.waits_for() if model.hooked else ""
        return {
            "model": model.name,
            "release": digest,
            "package": active.release if active is not None else resting,
            "variant": variant,
            "workers": router.workers,
            "processors": os.cpu_count() or 1,
            "kept": router.kept.release if router.kept is not None else None,
            "reason": adaptation.rests or (decision.reason if decision else ""),
            "pressures": sorted(decision.state.pressures) if decision else [],
            "levers": to_builtins(decision.levers) if decision else None,
            "pinned": adaptation.pinned,
            "captured": router.capture is not None,
            "shadow": self._shadows().get(model.name),
            "policy": to_builtins(adaptation.policy),
            "own_policy": self._own_policy,
            "phase": record.state.value,
            "transfer": _with_rest(transfer) if transfer is not None else None,
            "waits_for": model.machine.waits_for
            or held
            or (model.machine.slowness() if transfer is not None else ""),
            "target": f"{record.target.name}:{record.target.version}" if record.target else None,
            "last_report": to_builtins(record.report),
        }

    def _variants(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = arguments.get("model")
        shown = [self._models.named(wanted)] if wanted is not None else list(self._models)
        return [variant for model in shown for variant in _variants_of(model)]

    def _why(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        within_s, wanted = arguments.get("within_s", 3600), arguments.get("model")
        kinds = arguments.get("kinds", [])
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            raise ControlError("kinds is not a list of kinds of events")
        if not isinstance(within_s, int | float) or not within_s >= 0:
            raise ControlError("within_s is not a number of seconds")
        name = None if wanted is None else self._models.named(wanted).name
        since_s = self._clock.now_s() - within_s
        events = [to_builtins(e) for e in self._pump.events((*kinds,), since_s, EVENTS_KEPT)]
        events = [event for event in events if is_about(event.get("data") or {}, name)]
        size_bytes = sum(len(json.dumps(event)) + 2 for event in events)
        if size_bytes > MAX_ANSWER_BYTES:
            raise ControlError(
                f"{len(events)} events are too much for one answer",
                remedy="ask for a shorter time, such as --since 15m, or for one --kind",
            )
        return events

    def _figures(self, arguments: dict[str, Any]) -> dict[str, Any]:
        adaptation = self._models.named(arguments.get("model")).adaptation
        release, variant = adaptation.active()
        served = adaptation.served()
        return {
            "pid": os.getpid(),
            "release": release,
            "variant": variant,
            "declared_ms": adaptation.declared_ms(),
            "requests": served.requests,
            "answered": served.answered,
            "compute_s": served.compute_s,
        }

    def _pin(self, arguments: dict[str, Any]) -> dict[str, Any]:
        model = self._models.named(arguments.get("model"))
        name, adaptation = arguments.get("variant"), model.adaptation
        names = {c.name for c in adaptation.candidates()}
        if name is not None and name not in names:
            raise ControlError(
                f"there is no variant {name!r}",
                remedy=f"choose one of {', '.join(sorted(names)) or 'none'}",
            )
        model.store.update(pinned=name)
        adaptation.pinned = name
        adaptation.tick(adaptation.health)
        decision = adaptation.decision
        return {
            "model": model.name,
            "pinned": name,
            "variant": adaptation.active()[1],
            "verdict": decision.verdicts.get(name or "", "") if decision else "",
            "rests": adaptation.rests,
        }

    def _override(self, arguments: dict[str, Any]) -> dict[str, Any]:
        override, for_s = self._override_of_device, arguments.get("for_s")
        if override is None:
            raise ControlError(
                "this device has no hooks, and its installs may begin at any time, unbounded",
                remedy="set `directory` below [hooks], `window` below [install], or "
                "[[delivery.networks]], in agent.toml",
            )
        if for_s is None:
            override.clear()
        elif isinstance(for_s, int | float) and 0 < for_s <= MAX_OVERRIDE_S:
            override.allow(for_s)
        else:
            raise ControlError("an override is for more than 0 s, and for 1d at most")
        waits = [model.hooked.waits_for() for model in self._models if model.hooked]
        return {"override_s": override.rest_s, "waits_for": "; ".join(filter(None, waits))}


def _with_rest(transfer: TransferProgress) -> dict[str, Any]:
    return {**to_builtins(transfer), "rest_s": transfer.rest_s}


def _variants_of(model: Model) -> list[dict[str, Any]]:
    adaptation = model.adaptation
    decision, rests = adaptation.decision, adaptation.rests
    verdicts = decision.verdicts if decision else {}
    if adaptation.is_unloaded:  # what was decided before is no reason any more
        verdicts = {c.name: "the model is unloaded" for c in adaptation.candidates()}
    digest, serving = adaptation.in_service()
    kept = [
        to_builtins(c) | {"serving": c.name == serving, "verdict": verdicts.get(c.name, "")}
        for c in adaptation.candidates()
    ]
    dropped = [
        {"name": name, "serving": False, "benched": reason, "verdict": f"dropped: {reason}"}
        for name, reason in model.store.state.dropped.get(digest or "", {}).items()
    ]
    return [variant | {"model": model.name, "rests": rests} for variant in (*kept, *dropped)]


def _trust(metadata: MetadataTrust | None) -> dict[str, Any] | None:
    """Return what the status tells of trusted metadata."""
    if metadata is None:
        return {"file": True}
    return {
        "versions": to_builtins(metadata.versions),
        "expires_at_s": metadata.expires_at_s,
        "stale": metadata.stale,
        "refused": metadata.refused,
    }
