"""The models of a simulated device, and the install that goes on.

Rules:
- One install at a time; a further order waits, and a newer one takes the place of an older.
- It fetches at once, and waits with the rest for a window of its rollout, as a device does.
- What is ordered again whose outcome is known is told again, and not installed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, Protocol

import msgspec

from agent.install.conditions import Later, out_of_windows
from agent.install.events import BYTES_METRIC, DURATION_METRIC, INSTALL
from agent.install.states import State
from agent.simulate.course import TAKES_S, Course, is_same
from agent.simulate.fate import Fate
from agent.simulate.retrieval import Retrieval
from telemetry.device.recorder import Recorder
from wire.clock import Clock, local_time
from wire.delivery import Chunk, ChunkRequest
from wire.desired import DesiredModels, ModelState
from wire.errors import FleetError
from wire.installs import InstallOutcome, InstallReport, ReleaseRef
from wire.presence import ServedModel
from wire.progress import MQTT
from wire.simulation import Plan, Tally
from wire.trust.root import Trust

PATIENCE_S: Final = 20.0
RATE_BYTES_PER_S: Final = 1_000_000.0
SLOW: Final = 0.1


class Around(Protocol):
    """What a device needs of the program that plays it."""

    @property
    def clock(self) -> Clock:
        """The time."""
        ...

    @property
    def tally(self) -> Tally:
        """What has happened so far."""
        ...

    def after(self, wait_s: float, what: Callable[[], None]) -> None:
        """Do something later, in the thread of all devices."""
        ...


class Road(Protocol):
    """The device around its installs."""

    def tell(self, report: InstallReport) -> None:
        """Send a report."""
        ...

    def ask(self, request: ChunkRequest) -> None:
        """Send a request for chunks; one that gets lost is asked again."""
        ...

    def restart(self) -> None:
        """Go off and on again."""
        ...


class _Model(msgspec.Struct, kw_only=True):
    """What the device knows of a model."""

    active: ReleaseRef | None = None
    wanted: ModelState | None = None
    """What was ordered last and has an outcome."""

    report: InstallReport | None = None


class Installs:
    """The models of one device.

    Args:
        name: The device.
        fate: Its draws.
        plan: What is played.
        trust: The keys that may sign.
        recorder: Takes figures and events.
        road: The device.
        around: The program.
    """

    def __init__(
        self,
        name: str,
        fate: Fate,
        plan: Plan,
        trust: Trust,
        *,
        recorder: Recorder,
        road: Road,
        around: Around,
    ) -> None:
        self._name = name
        self._fate = fate
        self._plan = plan
        self._trust = trust
        self._recorder = recorder
        self._road = road
        self._around = around
        self._clock = around.clock
        self._rate_bytes_per_s = RATE_BYTES_PER_S * fate.spread("rate", 0.5)
        self._rate_bytes_per_s *= SLOW if fate.hits("slow_network") else 1.0
        self._models: dict[str, _Model] = {}
        self._first: dict[str, str] = {}
        """The first version that the device ran of each model."""

        self._variants: dict[str, str] = {}
        """The variant that the device took of each package."""

        self._course: Course | None = None
        self._began_s = 0.0
        self._step = 0
        """Grows with each step of an install: a timer of an earlier one does nothing."""

        self._queue: deque[ModelState] = deque()
        self._retrieval: Retrieval | None = None
        self._requests = 0
        self._seen: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET

    def served(self) -> tuple[ServedModel, ...]:
        """Return the models of the device, as it greets."""
        return tuple(
            ServedModel(
                name=name,
                revision=model.wanted.revision if model.wanted else 0,
                release=model.active.digest if model.active else None,
                variant=self._variant(model),
            )
            for name, model in self._models.items()
        )

    def answering(self) -> list[tuple[ReleaseRef, str, bool]]:
        """Return what answers requests: release, variant, whether it is the model's first one."""
        return [
            (model.active, self._variant(model) or "", self._first[name] == model.active.version)
            for name, model in self._models.items()
            if model.active is not None
        ]

    def off(self) -> None:
        """Note that the device is switched off: what it was doing begins again later."""
        self._step += 1

    def on(self) -> None:
        """Go on with the install that was interrupted."""
        if self._course is not None:
            self._enter(self._course)

    def reconnected(self) -> None:
        """Ask again for what was under way."""
        if self._retrieval is not None:
            self._ask(self._retrieval)

    def follow(self, desired: DesiredModels) -> None:
        """Do what a checked desired state orders."""
        if not desired.keeps_others and not desired.is_unnamed:
            self._keep_only({model.name for model in desired.models})
        for wanted in desired.models:
            if wanted.release is not None:
                self._want(wanted, wanted.release)

    def _keep_only(self, names: Collection[str]) -> None:
        """Remove all other models, and end what installs one of them."""
        self._models = {name: kept for name, kept in self._models.items() if name in names}
        self._queue = deque(each for each in self._queue if each.name in names)
        if (course := self._course) is not None and course.wanted.name not in names:
            self._abandon(course)
            course.abandoned = True  # also one that has to go on to its end

    def _abandon(self, course: Course) -> None:
        """End an install for a newer order, if that may be now."""
        if course.may_abandon and not course.abandoned:
            self._step += 1
            course.abandon()
            self._go_on(course)

    def _want(self, wanted: ModelState, release: ReleaseRef) -> None:
        """Take an order for one model: tell its outcome, or let it be installed."""
        course = self._course
        if course is not None and course.wanted.name == wanted.name:
            if course.abandoned or not is_same(course.wanted, wanted):
                self._put_off(wanted)
                self._abandon(course)
            return
        model = self._models.setdefault(wanted.name, _Model())
        known = model.wanted
        if model.report is not None and known is not None and is_same(known, wanted):
            model.wanted = wanted
            model.report = msgspec.structs.replace(model.report, revision=wanted.revision)
            self._road.tell(model.report)
        elif model.active is not None and model.active.digest == release.digest:
            self._end(wanted, self._report(wanted, release, State.IDLE, "succeeded"))
        else:
            self._put_off(wanted)
            self._next()

    def _put_off(self, wanted: ModelState) -> None:
        self._queue = deque(each for each in self._queue if each.name != wanted.name)
        self._queue.append(wanted)

    def _next(self) -> None:
        """Begin the next install, if none is going on."""
        if self._course is not None or not self._queue:
            return
        wanted = self._queue.popleft()
        release = wanted.release
        assert release is not None  # noqa: S101 - only such orders are put off
        previous = self._models.setdefault(wanted.name, _Model()).active
        faults = self._fate.of_install(f"{release.name}:{release.version}")
        self._course = course = Course(wanted, release, faults, previous)
        self._began_s = self._clock.monotonic_s()
        self._retrieval = None
        self._around.tally.installs_begun += 1
        self._enter(course)

    def _enter(self, course: Course) -> None:
        """Begin the effect of a state."""
        self._step += 1
        step = self._step
        report = self._report(course.wanted, course.release, course.state, "running")
        if (later := self._held(course)) is not None:
            self._road.tell(msgspec.structs.replace(report, detail=later.why))
            self._around.after(later.look_s, lambda: self._look(course, step))
            return
        self._road.tell(report)
        if course.state is State.FETCHING:
            if self._retrieval is None:
                self._retrieval = Retrieval(
                    course.release, self._plan.profile, self._trust, self._plan.fetch_bytes
                )
            self._ask(self._retrieval)
        elif not course.hangs:
            takes_s = TAKES_S[course.state] * self._fate.spread(course.state, 0.3)
            self._around.after(takes_s / self._plan.speed, lambda: self._effected(course, step))

    def _held(self, course: Course) -> Later | None:
        """Return why an install does not go on yet, or None."""
        if course.state is not State.STAGING:
            return None
        return out_of_windows(course.wanted.hours, self._clock.now_s(), local_time)

    def _look(self, course: Course, step: int) -> None:
        """Go on with an install that waits, once nothing holds it any more."""
        if step != self._step:
            return
        if (later := self._held(course)) is None:
            self._enter(course)
        else:
            self._around.after(later.look_s, lambda: self._look(course, step))

    def _effected(self, course: Course, step: int) -> None:
        if step != self._step:
            return
        if course.restarts():
            self._road.restart()
            return
        course.done()
        self._go_on(course)

    def _go_on(self, course: Course) -> None:
        """Go to the next state, or end."""
        name = course.wanted.name
        if name in self._models and self._models[name].active is not course.active:
            model = self._models[name]
            model.active = course.active
            if course.active is not None:
                self._first.setdefault(name, course.active.version)
        if not course.is_over:
            if course.state is State.VERIFYING and self._retrieval is not None:
                self._variants[course.release.digest] = self._retrieval.variant
                self._recorder.add(BYTES_METRIC, self._retrieval.came_bytes, {"source": MQTT})
            self._enter(course)
            return
        self._course = None
        if not course.abandoned:
            outcome: InstallOutcome = "failed" if course.failure is not None else "succeeded"
            report = self._report(course.wanted, course.release, State.IDLE, outcome)
            if (failure := course.failure) is not None:
                report = msgspec.structs.replace(
                    report,
                    phase=failure.phase.value,
                    error_code=failure.code,
                    detail=failure.detail,
                )
            self._count(course, report)
            self._end(course.wanted, report)
        self._retrieval = None
        self._next()

    def _count(self, course: Course, report: InstallReport) -> None:
        tally, outcome = self._around.tally, report.outcome
        if outcome == "succeeded":
            tally.installs_done += 1
        else:
            tally.installs_failed += 1
        release = f"{course.release.name}:{course.release.version}"
        took_s = self._clock.monotonic_s() - self._began_s
        self._recorder.observe(DURATION_METRIC, took_s, {"outcome": outcome})
        data = {
            "release": release,
            "outcome": outcome,
            "revision": report.revision,
            "phase": report.phase,
            "code": report.error_code,
        }
        self._recorder.event(INSTALL, report.detail or f"{release} {outcome}", data)

    def _end(self, wanted: ModelState, report: InstallReport) -> None:
        model = self._models.setdefault(wanted.name, _Model())
        model.wanted, model.report = wanted, report
        self._road.tell(report)

    def _report(
        self, wanted: ModelState, release: ReleaseRef, state: State, outcome: InstallOutcome
    ) -> InstallReport:
        model = self._models.get(wanted.name, _Model())
        retrieval = self._retrieval
        return InstallReport(
            device=self._name,
            model=wanted.name,
            revision=wanted.revision,
            digest=release.digest,
            phase=state.value,
            outcome=outcome,
            active=model.active.digest if model.active else None,
            variant=self._variant(model),
            done_bytes=retrieval.came_bytes if retrieval is not None else 0,
            total_bytes=retrieval.total_bytes if retrieval is not None else 0,
            at_s=self._clock.now_s(),
        )

    def _ask(self, retrieval: Retrieval) -> None:
        """Ask for the next chunks, and again if none comes."""
        wanted, course = retrieval.wanted(), self._course
        if course is None or course.state is not State.FETCHING:
            return
        if wanted is None:
            step = self._step
            rest_s = retrieval.omitted_bytes / self._rate_bytes_per_s
            self._around.after(rest_s, lambda: self._effected(course, step))
            return
        self._requests += 1
        number = self._requests
        request = ChunkRequest(
            device=self._name,
            sha256=wanted.sha256,
            chunk_bytes=wanted.chunk_bytes,
            indices=wanted.indices,
            number=number,
            seen=self._seen,
            patience_s=PATIENCE_S,
        )
        self._road.ask(request)
        self._around.after(PATIENCE_S, lambda: self._ask_again(retrieval, number))

    def _ask_again(self, retrieval: Retrieval, number: int) -> None:
        if retrieval is self._retrieval and number == self._requests and not retrieval.is_done:
            self._ask(retrieval)

    def take_chunk(self, chunk: Chunk) -> None:
        """Take a piece of a package that came."""
        retrieval, course = self._retrieval, self._course
        if not isinstance(chunk.number, msgspec.UnsetType):
            self._seen = (chunk.number, chunk.index)
        if retrieval is None or course is None or course.state is not State.FETCHING:
            return
        before_bytes = retrieval.came_bytes
        try:
            is_whole = retrieval.take(chunk)
        except FleetError as exc:
            self._step += 1
            course.fail(exc.code, exc.message[:300])
            self._go_on(course)
            return
        if is_whole:
            self._requests += 1  # nothing is awaited any more
            rest_s = (retrieval.came_bytes - before_bytes) / self._rate_bytes_per_s
            step = self._step
            self._around.after(rest_s, lambda: self._ask_if(retrieval, step))

    def _ask_if(self, retrieval: Retrieval, step: int) -> None:
        if step == self._step:
            self._ask(retrieval)

    def _variant(self, model: _Model) -> str | None:
        return self._variants.get(model.active.digest) if model.active is not None else None
