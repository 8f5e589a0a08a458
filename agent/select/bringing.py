"""Brings the variant that was chosen into service, and tells of it.

Rules:
- Each worker hashes its files before it loads them; what is damaged is not loaded.
- A variant that cannot start is benched for a while and the next best is tried.
- Who calls lets one change of a model happen at a time.
"""

from __future__ import annotations

from typing import Any, Final

from agent.errors import NoVariantError
from agent.ports import ModelServerPort, RecorderPort
from agent.select.deciding import Deciding, Loaded
from agent.select.decision_log import DecisionLog
from agent.select.decisions import Decision
from agent.serve.benches import Benches
from wire.codec import to_builtins
from wire.errors import FleetError

PARKED: Final = "the model is parked: the other models of the device need what it takes"
NONE_CAN_SERVE: Final = (
    "no variant of the model can serve now: each crashed too often or could not start; "
    "the agent tries again in some seconds"
)


class Bringing:
    """Changes what serves of one model.

    Args:
        model_server: Runs the workers.
        deciding: Decides, and hears of switches.
        benches: Which variants rest.
        recorder: Records switches and variants that cannot serve.
        log: Tells of decisions.
    """

    def __init__(
        self,
        model_server: ModelServerPort,
        deciding: Deciding,
        benches: Benches,
        recorder: RecorderPort,
        log: DecisionLog,
    ) -> None:
        self._model_server = model_server
        self._deciding = deciding
        self._benches = benches
        self._recorder = recorder
        self._log = log

    @property
    def _serving(self) -> str | None:
        active = self._model_server.active
        return active.variant.name if active is not None else None

    def adapt(self, loaded: Loaded) -> None:
        """Switch if another variant is chosen; while none serves, try one after another.

        Args:
            loaded: What is in service.
        """
        while not self.tried(loaded, self._deciding.decide(loaded)):
            pass

    def tried(self, loaded: Loaded, decision: Decision) -> bool:
        """Switch if another variant is chosen.

        Args:
            loaded: What is in service.
            decision: What was decided.

        Returns:
            Whether something serves, or nothing can.
        """
        wanted, present = decision.variant, self._serving
        if wanted is None or wanted == present:
            self._log.stayed(decision, loaded.package.release)
            if wanted is None and present is None:
                self._model_server.withdraw(NONE_CAN_SERVE, keeps_previous=True)
            return True
        try:
            self._bring(loaded, decision, present)
        except FleetError as exc:
            self._bench(loaded, wanted, exc)
        return self._serving is not None

    def park(self, loaded: Loaded, decision: Decision) -> None:
        """End the worker, because the other models of the device need what it takes.

        Args:
            loaded: What is in service.
            decision: What was decided.
        """
        before = self._serving
        self._model_server.withdraw(PARKED)
        self._deciding.switched()
        data: dict[str, Any] = {
            "from": before,
            "to": None,
            "release": loaded.package.release,
            "inputs": to_builtins(decision.inputs),
            "verdicts": decision.verdicts,
        }
        self._recorder.event("switch", decision.reason, data)
        self._log.switched(decision)

    def enter(self, loaded: Loaded, why: str) -> None:
        """Try the variants of a package, best first, until one serves.

        Args:
            loaded: What comes into service.
            why: Reason for the event that records the switch.

        Raises:
            NoVariantError: None did.
        """
        faults: list[str] = []
        self._benches.clear()
        self._deciding.begin()
        while (decision := self._deciding.decide(loaded, entering=True)).variant is not None:
            try:
                self._bring(loaded, decision, None, why=why)
            except FleetError as exc:
                self._bench(loaded, decision.variant, exc)
                faults.append(f"{decision.variant}: {exc.message}")
            else:
                return
        raise NoVariantError(
            f"no variant of {loaded.package.release} can serve: {'; '.join(faults) or 'none fits'}"
        )

    def _bring(
        self, loaded: Loaded, decision: Decision, before: str | None, *, why: str = ""
    ) -> None:
        package = loaded.package
        variant = next(v for v in loaded.variants if v.name == decision.variant)
        gap = decision.switch is not None and decision.switch.gap
        self._model_server.switch_to(package.directory, package.digest, variant, stop_first=gap)
        self._deciding.switched()
        self._recorder.add("variant_switches_total", 1.0, {"release": package.release})
        data: dict[str, Any] = {
            "from": before,
            "to": variant.name,
            "release": package.release,
            "inputs": to_builtins(decision.inputs),
            "verdicts": decision.verdicts,
            "levers": decision.levers.reasons,
            "cost": to_builtins(decision.switch),
        }
        self._recorder.event(
            "switch", f"{why}: {decision.reason}" if why else decision.reason, data
        )
        self._log.switched(decision)

    def _bench(self, loaded: Loaded, name: str, exc: FleetError) -> None:
        self._benches.rest(loaded.package.digest, name, exc.message)
        data = {"variant": name, "release": loaded.package.release, "code": exc.code}
        self._recorder.event("worker", f"variant {name} cannot serve: {exc.message}", data)
