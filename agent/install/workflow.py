"""Runs the install workflow by its table of states: saves before each effect, counts the attempts.

Rules:
- Each model has a machine of its own. An effect is done while no other model's is, also a hook that
  runs and the time in which an install is confirmed. Waiting for a network, a window, a budget or a
  hook that says later holds up no other model.
- Each state is on disk before its effect begins. After a power cut at any line the machine does the
  effect of that state again.
- No effect is begun more than `MAX_ATTEMPTS` times without progress, restarts included.
- After a retryable error the machine waits 1 s to 60 s. While the device is not connected, an error
  does not count as an attempt.
- If the state cannot be saved, an install fails, but the return to the previous package goes on. It
  is tried again if the storage fails, connected or not: a restart must not find the rejected one.
- A package that the operator hands over is taken at the next safe point; the effect begins again.
- A newer revision with the same release for the same rollout changes only the policy. The machine
  accepts it and installs nothing, also after a failure.
- A release that was installed and is lost or damaged is installed again, at the pace of
  `agent.install.repair_pace`; what serves meanwhile goes on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from agent.errors import (
    AttemptsError,
    InterjectedError,
    StoppedError,
    StorageError,
    SupersededError,
)
from agent.install.arrivals import Arrivals
from agent.install.events import BYTES_METRIC, DURATION_METRIC, INSTALL, ending
from agent.install.ports import Effects, ReportLink
from agent.install.progress import TransferMeter
from agent.install.records import Failure, ModelRecord, has_served, outcome_of
from agent.install.repair_pace import RepairPace
from agent.install.reports import Reporter, failure_of, serves_nothing
from agent.install.states import InstallEvent, State, may_abandon, next_state
from agent.install.store import ModelStore
from agent.interrupts import Interrupts
from agent.ports import RecorderPort
from wire.clock import Clock
from wire.desired import ModelState
from wire.errors import FleetError
from wire.installs import InstallReport
from wire.progress import FOUND, TransferProgress

MAX_ATTEMPTS: Final = 5
BACK_OFF_MIN_S: Final = 1.0
BACK_OFF_MAX_S: Final = 60.0
RECONNECT_POLL_S: Final = 1.0
OTHER_CHANGE: Final = "another change of packages to end"


class _Result(NamedTuple):
    event: InstallEvent
    failure: Failure | None = None


class Machine:
    """One install of a model at a time, from what is desired to its outcome.

    Args:
        device: The device that the reports are from.
        store: Where the state is saved.
        effects: Does the effect of each state.
        link: Takes the reports.
        events: Takes one event for each install.
        interrupts: Tells when an install must end.
        clock: For back-off and reports.
        rng: For the jitter of the back-off.
    """

    def __init__(
        self,
        device: str,
        store: ModelStore,
        effects: Effects,
        link: ReportLink,
        events: RecorderPort,
        *,
        interrupts: Interrupts,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._reporter = Reporter(device=device, model=store.name)
        self._store = store
        self._effects = effects
        self._link = link
        self._events = events
        self._interrupts = interrupts
        self._clock = clock
        self._rng = rng
        self._attempts = 0
        self._meter = TransferMeter(clock.monotonic_s, self._came)
        self._known = False  # whether the device had the package before; a restart forgets it
        self._unsaved: dict[str, Any] = {}
        self._repair_pace = RepairPace()
        self.arrivals = Arrivals()
        """What came over the network; another one takes its place where something counts."""

        self.on_end: Callable[[], None] = lambda: None  # called when an install has ended
        self.waits_for = ""  # what it waits for, if another model has the turn; else empty
        self.slowness: Callable[[], str] = lambda: ""
        """Returns what is said of a fetch that is too slow; empty if it is not."""

    def accept(self, desired: ModelState, *, has_sources: bool) -> None:
        """Take what is desired of the model while idle; if its outcome is known, report it again.

        Args:
            desired: What to run, from a verified desired state; not older than the accepted one.
            has_sources: Whether the controller has other sources than messages.

        Raises:
            StorageError: It could not be saved, so no install was begun.
            IllegalTransitionError: An install is going on.
        """
        record, target = self._store.state, desired.release
        accepted = next_state(record.state, InstallEvent.ACCEPTED)
        current, outcome = self._effects.current(), outcome_of(record, desired)
        if outcome is not None:
            self._take_again(outcome, desired)
            return
        changes: dict[str, Any] = {
            "revision": desired.revision,
            "target": target,
            "rollout": desired.rollout,
            "windows": desired.hours,
            "has_sources": has_sources,
            "repairing": False,
            "failure": None,
            "abandoned": False,
            "attempts": 0,
            "delayed_s": 0.0,
        }
        self._meter.begin_install()
        self.arrivals.begin(self._store.name)
        self._known = target is not None and target.digest in {current, *record.dropped}
        if target is None or (
            target.digest == current and self._effects.serve_again(target.digest) is None
        ):
            self._store.update(**changes)
            if target is None:  # what an install has left that was ended for it
                with self._interrupts.turn():
                    self._effects.tidy()
            self._finish({})
            return
        if target.digest != current:
            changes["previous"] = current
        self._store.update(state=accepted, **changes)

    def repair(self) -> bool:
        """Begin to install again the release that was installed, if it is lost or damaged.

        Returns:
            Whether there is an install for `run`.

        Raises:
            StorageError: It could not be saved, so no install was begun.
        """
        record, now_s = self._store.state, self._clock.monotonic_s()
        target = record.target
        if target is None or record.state is not State.IDLE or not has_served(record):
            return False
        loss = self._effects.loss(target.digest)
        if loss is None and record.repairing:  # the last attempt failed, and mended enough
            self._finish({"failure": None, "repairing": False})
        if loss is None or not self._repair_pace.may_begin(now_s):
            return False
        self._repair_pace.begin(now_s)
        self._meter.begin_install()
        self.arrivals.begin(self._store.name)
        self._store.update(
            state=next_state(record.state, InstallEvent.ACCEPTED),
            attempts=0,
            delayed_s=0.0,
            failure=None,
            abandoned=False,
            repairing=True,
        )
        release = f"{target.name}:{target.version}"
        active = self._effects.serving()[0]
        data = {"revision": record.revision, "release": release, "active": active}
        self._events.event("drift", f"{release} is installed again: {loss}", data)
        return True

    def run(self) -> None:
        """Go from state to state until idle.

        Raises:
            StoppedError: The agent is being stopped; the next run goes on from there.
            IllegalTransitionError: There is a bug.
        """
        state = self._store.state.state
        while state is not State.IDLE:
            self.report_running(state)
            result = self._step(state)
            if result.failure is not None and state is not State.REVERTING:
                self._unsaved["failure"] = result.failure
            if result.event is InstallEvent.ABANDONED:
                self._unsaved["abandoned"] = True
            state = next_state(state, result.event)
            if state is State.IDLE:
                unsaved, self._unsaved = self._unsaved, {}
                self._finish(unsaved)
                self.on_end()

    def _step(self, state: State) -> _Result:
        """Try the effect of a state until it is done or must not be tried again.

        Raises:
            StoppedError: The agent is being stopped.
        """
        saved = self._store.state
        self._attempts = saved.attempts if saved.state is state else 0
        while True:
            try:
                result = self._attempt(state)
            except SupersededError:
                return _Result(InstallEvent.ABANDONED)
            except InterjectedError:  # nothing failed, or the wait after it was cut short
                self._attempts -= 1
                self._interrupts.give_way()
                continue
            if result is not None:
                return result

    def _attempt(self, state: State) -> _Result | None:
        """Try the effect of a state once; wait and return None if it is to be tried again.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
            InterjectedError: Another thread waits for a piece of work.
        """
        if self._attempts >= MAX_ATTEMPTS:
            return _failed(state, AttemptsError(f"{state} was begun {self._attempts} times"))
        self._attempts += 1
        abandon = may_abandon(state)
        try:
            with self._interrupts.turn(abandon=abandon, on_wait=lambda: self._tell_wait(state)):
                self._interrupts.check(abandon=abandon)
                self._waited(state)
                self.arrivals.count_for(self._store.name)
                self._save(state)
                self._effects.perform(state, self._meter)
        except (StoppedError, SupersededError, InterjectedError):
            self.waits_for = ""
            raise
        except FleetError as exc:
            # A stop ends the workers too: their error then says nothing about the package.
            self._interrupts.check(abandon=False)
            is_unwritten = state is State.REVERTING and isinstance(exc, StorageError)
            if not (exc.retryable or is_unwritten) or self._attempts >= MAX_ATTEMPTS:
                return _failed(state, exc)
        else:
            return _Result(InstallEvent.DONE)
        self._back_off(abandon=abandon, needs_road=not is_unwritten)
        return None

    def tell_wait(self, state: State, why: str) -> None:
        """Report what the install waits for; empty when it goes on."""
        self.waits_for = why
        self.report_running(state, why)

    def _tell_wait(self, state: State) -> None:
        model = self._interrupts.owning_model
        self.waits_for = f"the install of model {model} to end" if model else OTHER_CHANGE
        self.report_running(state, self.waits_for)

    def _waited(self, state: State) -> None:
        """Tell that a wait for the turn is over, if there was one that was told."""
        if self.waits_for:
            self.waits_for = ""
            self.report_running(state)

    def _save(self, state: State) -> None:
        try:
            self._store.update(state=state, attempts=self._attempts, **self._unsaved)
        except StorageError:
            if state is not State.REVERTING:
                raise
        else:
            self._unsaved.clear()

    def _back_off(self, *, abandon: bool, needs_road: bool) -> None:
        if not needs_road or self._link.is_connected():
            ceiling_s = min(BACK_OFF_MAX_S, BACK_OFF_MIN_S * 2.0**self._attempts)
            wait_s = self._rng.uniform(max(BACK_OFF_MIN_S, ceiling_s / 2), ceiling_s)
            self._interrupts.wait(wait_s, abandon=abandon)
            return
        while True:
            self._interrupts.wait(RECONNECT_POLL_S, abandon=abandon)
            if self._link.is_connected():
                self._attempts -= 1
                return

    def transfer(self) -> TransferProgress | None:
        """Return how far the transfer of a package is, or None if none runs."""
        figures, state = self._meter.figures, self._store.state.state
        return figures if figures.total_bytes and state is State.FETCHING else None

    def _came(self, size_bytes: int, source: str) -> None:
        if source not in FOUND:
            if self._store.state.attempts > 1:
                self._store.update(attempts=1)
            self._attempts = 1
        # After a restart nobody knows which way what is here once came.
        if source not in FOUND or self._meter.duration_s is not None:
            self._events.add(BYTES_METRIC, size_bytes, {"source": source})
        if self._meter.is_due():
            self.report_running(self._store.state.state)

    def _take_again(self, outcome: InstallReport, desired: ModelState) -> None:
        """Accept what is desired if its install has ended, and report its outcome again.

        A success that has been lost since is not reported: the repair reports what comes of it. One
        that serves nothing now is reported as a failure until it serves again.
        """
        active, variant = self._effects.serving()
        report = msgspec.structs.replace(
            outcome, revision=desired.revision, active=active, variant=variant
        )
        if desired.revision != outcome.revision:
            self._store.update(revision=desired.revision, report=report)
        target = self._store.state.target
        lost = target is not None and self._effects.loss(target.digest) is not None
        if outcome.outcome == "succeeded" and lost:
            return
        if outcome.outcome == "succeeded" and target is not None and active is None:
            report = serves_nothing(report)
        self._link.tell(report)

    def report_running(self, state: State, waits_for: str = "") -> None:
        """Report that an install is under way, and what it waits for."""
        self._meter.reported()
        if state is State.FETCHING:
            waits_for = waits_for or self.slowness()
        self._link.tell(self._report(self._store.state, state, failure=None, waits_for=waits_for))

    def _finish(self, changes: dict[str, Any]) -> None:
        """Save and report the outcome; an abandoned install has none."""
        record = self._store.state
        failure = changes.get("failure", record.failure)
        if changes.get("abandoned", record.abandoned):
            self._store.update(state=State.IDLE, attempts=0, **changes)
            self._note(record, None)
            return
        report = self._report(record, State.IDLE, failure=failure)
        changes = {"repairing": record.repairing and failure is not None, **changes}
        try:
            self._store.update(state=State.IDLE, attempts=0, report=report, **changes)
        finally:
            # Reported even if it cannot be saved: the controller must not wait in vain.
            self._link.tell(report)
            self._note(record, report)

    def _note(self, record: ModelRecord, report: InstallReport | None) -> None:
        ended = ending(report, record.target, repairing=record.repairing, known=self._known)
        outcome = report.outcome if report else "abandoned"
        duration_s = self._meter.duration_s
        if ended.kind == INSTALL and record.target is not None and duration_s is not None:
            self._events.observe(DURATION_METRIC, duration_s, {"outcome": outcome})
        data = {
            "revision": record.revision,
            "release": ended.release,
            "outcome": outcome,
            "repair": record.repairing,
            "phase": report.phase if report else None,
            "code": report.error_code if report else "",
            "active": self._effects.serving()[0],
            "duration_s": None if duration_s is None else round(duration_s, 3),
            "bytes_by_source": self._meter.figures.bytes_by_source,
            "network_bytes_by_source": self.arrivals.by_source(self._store.name),
        }
        self._events.event(ended.kind, ended.reason, data)

    def _report(
        self, record: ModelRecord, state: State, *, failure: Failure | None, waits_for: str = ""
    ) -> InstallReport:
        return self._reporter.report(
            record,
            state,
            failure=failure,
            serving=self._effects.serving(),
            transfer=self._meter.figures,
            at_s=self._clock.now_s(),
            waits_for=waits_for,
        )


def _failed(state: State, exc: FleetError) -> _Result:
    return _Result(InstallEvent.FAILED, failure_of(state, exc))
