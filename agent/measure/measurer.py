"""Measures packages that the controller asks for, one at a time, in a thread of its own.

Rules:
- What is installed and what serves is not touched: the package lies in a place of its own, and goes
  when the measurement has ended.
- A device that is strained refuses, and one that becomes so, or whose storage fails, stops. What
  was measured until then is told.
- A restart forgets the request, and answers that it was interrupted.
- An answer that finds no connection is sent with the next one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from agent.errors import MeasureError, StoppedError, StorageError
from agent.interrupts import Interrupts
from agent.measure.asked import read_asked
from agent.measure.bounds import reference_of, why_not, why_stop
from agent.measure.job import Job, Side
from agent.measure.package import Packages
from agent.measure.place import Place
from agent.measure.process import run_job
from agent.measure.settings import MeasureSettings
from agent.packages import Package
from agent.ports import RecorderPort
from agent.select.adaptations import Adaptations
from wire.clock import Clock
from wire.codec import to_json
from wire.errors import FleetError
from wire.measuring import (
    MAX_REASON_CHARS,
    MAX_VARIANTS,
    Measure,
    Measured,
    MeasuredState,
    MeasuredVariant,
)
from wire.package.index import asset_directory
from wire.package.variant import Variant
from wire.topics import up
from wire.trust.root import Trust

MIN_RUNS: Final = 30
MIN_DURATION_S: Final = 1.0
"""Of each variant. It then runs in turn with the reference for up to ten times as long."""

JOB_FILE: Final = "job"
NOT_ALLOWED: Final = (
    "the device does not allow it: set allow = true in [measure] of its agent.toml, and start the "
    "agent again"
)

Publish = Callable[[str, bytes], bool]


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """This device."""

    device: str
    boot_id: str
    threads: int
    trust: Trust
    settings: MeasureSettings


class Measurer:
    """Takes requests to measure.

    Args:
        me: This device.
        place: Where packages are measured.
        packages: Brings them there.
        adaptations: Know how the device is.
        publish: Sends an answer; False without a connection.
        interrupts: Ends the work when the agent stops.
        recorder: Takes an event for each measurement.
        clock: Time.
    """

    def __init__(
        self,
        me: Me,
        place: Place,
        packages: Packages,
        *,
        adaptations: Adaptations,
        publish: Publish,
        interrupts: Interrupts,
        recorder: RecorderPort,
        clock: Clock,
    ) -> None:
        self._me = me
        self._place = place
        self._packages = packages
        self._adaptations = adaptations
        self._publish = publish
        self._interrupts = interrupts
        self._recorder = recorder
        self._clock = clock
        self._lock = threading.Lock()
        self._busy = False
        self._newest_s = -1.0
        self._unsent: list[Measured] = []

    def begin(self) -> None:
        """Forget what a restart interrupted, and remember to say so."""
        with contextlib.suppress(StorageError):  # it is no reason not to serve
            if (left := self._place.left()) is not None:
                self._unsent.append(self._answer(left, "interrupted", "the agent was restarted"))
                self._place.clear()

    def connected(self) -> None:
        """Send what found no connection."""
        with self._lock:
            waiting, self._unsent = self._unsent, []
        for answer in waiting:
            self._send(answer)

    def ask(self, envelope: bytes) -> None:
        """Check a request, and begin with it; returns at once.

        Args:
            envelope: The signed form, as received.

        Raises:
            FleetError: It is not a request for this device now; nobody is answered.
        """
        asked = read_asked(
            envelope,
            self._me.trust,
            device=self._me.device,
            boot_id=self._me.boot_id,
            after_s=self._newest_s,
        )
        self._newest_s = asked.issued_at_s
        refusal = self._refusal()
        if refusal:
            self._send(self._answer(asked.id, "refused", refusal))
            return
        self._busy = True
        threading.Thread(target=self._run, args=(asked,), name="measure", daemon=True).start()

    def _refusal(self) -> str:
        if not self._me.settings.allow:
            return NOT_ALLOWED
        if self._busy:
            return "another package is being measured"
        return self._why_stop()

    def _run(self, asked: Measure) -> None:
        try:
            answer = self._measured(asked)
        except StoppedError:  # the next start answers
            return
        except FleetError as exc:
            answer = self._answer(asked.id, "refused", exc.message)
        finally:
            self._busy = False
        release = f"{asked.release.name}:{asked.release.version}"
        said = "; ".join(part for part in (_summary(answer), answer.reason) if part)
        reason = f"measured {release}: {answer.state}"
        self._recorder.event(
            "measure",
            f"{reason}: {said}" if said else reason,
            {"release": release, "id": asked.id},
        )
        self._send(answer)

    def _measured(self, asked: Measure) -> Measured:
        """Carry out a request.

        Raises:
            StoppedError: The agent is being stopped.
            FleetError: Nothing can be measured.
        """
        end_s = self._clock.monotonic_s() + min(asked.limit_s, self._me.settings.limit_s)

        def check() -> None:
            self._interrupts.check(abandon=False)
            if self._clock.monotonic_s() >= end_s:
                raise MeasureError("the time for the measurement is over")
            if stop := self._why_stop():
                raise MeasureError(stop)

        try:
            self._place.begin(asked.id)
            before_c = self._adaptations.health.temperature_c
            package, variants = self._packages.bring(
                asked.release, check, has_sources=asked.has_sources
            )
            done: list[MeasuredVariant] = []
            ended = ""
            reference = reference_of(variants)
            for variant in variants[:MAX_VARIANTS]:
                try:
                    done.append(self._one(package, variant, reference, check))
                except (MeasureError, StorageError) as exc:
                    ended = exc.message
                    break
            answer = self._answer(asked.id, "refused" if ended else "measured", ended)
            return msgspec.structs.replace(
                answer,
                variants=tuple(done),
                temperature_before_c=before_c,
                temperature_after_c=self._adaptations.health.temperature_c,
            )
        finally:
            if not self._interrupts.stopping:
                with contextlib.suppress(StorageError):
                    self._place.clear()

    def _one(
        self,
        package: Package,
        variant: Variant,
        reference: Variant | None,
        check: Callable[[], None],
    ) -> MeasuredVariant:
        """Measure one variant.

        Raises:
            MeasureError: The measurement must end.
            StorageError: The storage failed.
            StoppedError: The agent is being stopped.
        """
        health, spec = self._adaptations.health, self._adaptations.policy
        if reason := why_not((variant,), health, spec):
            return MeasuredVariant(name=variant.name, reason=reason)
        if reference is not None and why_not((variant, reference), health, spec):
            reference = None
        job = Job(
            variant=_side(package, variant),
            reference=None if reference is None else _side(package, reference),
            threads=self._me.threads,
            min_runs=MIN_RUNS,
            min_duration_s=MIN_DURATION_S,
        )
        outcome = run_job(job, self._place.file(JOB_FILE), check, self._clock)
        if outcome.performance is None:
            return MeasuredVariant(
                name=variant.name, reason=outcome.fault[:MAX_REASON_CHARS] or "no figures"
            )
        return MeasuredVariant(name=variant.name, performance=outcome.performance)

    def _why_stop(self) -> str:
        device = self._adaptations
        return why_stop(device.levers, device.health, device.policy)

    def _answer(self, identifier: str, state: MeasuredState, reason: str = "") -> Measured:
        return Measured(
            device=self._me.device,
            id=identifier,
            state=state,
            reason=reason[:MAX_REASON_CHARS],
            at_s=self._clock.now_s(),
        )

    def _send(self, answer: Measured) -> None:
        if not self._publish(up(self._me.device, "measured"), to_json(answer)):
            with self._lock:
                self._unsent.append(answer)


def _summary(answer: Measured) -> str:
    """Return in a few words what was measured; empty if nothing was."""
    found = [(v.performance.latency_p50_ms, v.name) for v in answer.variants if v.performance]
    if not found:
        return ""
    latency_ms, name = min(found)
    if len(found) == 1:
        return f"figures of one variant, {name} with {latency_ms:.3g} ms"
    return f"figures of {len(found)} variants, the fastest is {name} with {latency_ms:.3g} ms"


def _side(package: Package, variant: Variant) -> Side:
    golden = variant.info.golden
    return Side(
        directory=str(package.directory / variant.directory),
        info=variant.info,
        assets=str(package.directory / asset_directory(golden.asset)) if golden else None,
    )
