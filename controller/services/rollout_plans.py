"""What a rollout would do: asked before it is made. Changes nothing.

Rules:
- What would stop the rollout from beginning is told, and the plan goes on as far as it can: devices
  that another rollout has are in it, those that refuse are not, unless they are allowed.
- Bytes are those of the files that a device needs; what it has already, and deltas, save some of
  them, so every figure is the most.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Final, NamedTuple, TypeVar

from controller.domain.device_kinds import profile_of
from controller.domain.preflight import Answer, OfferedRelease, Verdict
from controller.domain.rollout_plan import (
    EarlierInstalls,
    PlannedDevice,
    StagePlan,
    earlier_installs,
    plan,
)
from controller.domain.rollout_view import StageSpec
from controller.domain.starting_order import StartingOrder, places
from controller.domain.states import DeviceState
from controller.domain.supersession import Met
from controller.errors import ControllerError
from controller.rollout_control_schemas import ShownLimits, SupersededDevices
from controller.rollout_plan_schemas import (
    BusyDevices,
    InstallTimes,
    PlannedBytes,
    PreflightReport,
    RolloutPlan,
)
from controller.rollout_schemas import RolloutRequest
from controller.services import (
    follow_ups,
    planned_times,
    preflight,
    rollout_checks,
    shadow_checks,
    stage_checks,
    supersession,
)
from controller.services.preflight import Preflight
from controller.services.rollout_checks import IsListed
from controller.services.shadow_checks import check_agreement, check_devices
from controller.stage_schemas import PlannedStage, StageShadow
from controller.store import (
    device_facts,
    install_times,
    releases,
    rollout_work,
    starting_orders,
)
from controller.store.database import Database
from controller.store.device_facts import DeviceFacts
from controller.store.groups import read_selector
from telemetry.errors import QueryError
from telemetry.server.query import Query, run
from telemetry.server.question import DEVICE
from telemetry.server.store import TelemetryStore
from wire.clock import Clock, local_time
from wire.durations import DAY_S

T = TypeVar("T")

NETWORK: Final = "network"
FETCHED: Final = "fetched_bytes_total"
NETWORKS_S: Final = 7 * DAY_S
"""How far back it is looked over which network each device fetched."""

MAX_EARLIER: Final = 1000
"""Earlier installs that the estimate rests on at most."""


class _Read(NamedTuple):
    """What the plan needs of the control state."""

    model: str
    digest: str
    is_first: bool
    offered: OfferedRelease
    facts: list[DeviceFacts]
    """Enrolled devices that match."""

    judged: dict[str, Verdict]
    met: list[Met]
    making: list[str]
    """Rollouts of the model that take devices in."""

    report: PreflightReport
    earlier: EarlierInstalls | None
    order: StartingOrder


class RolloutPlans:
    """Tells what rollouts would do.

    Args:
        database: The control state.
        preflight: Knows which devices cannot take a release.
        telemetry: What devices measured.
        clock: Wall time.
        is_listed: Tells whether devices take a release, by its name, version and digest.
    """

    def __init__(
        self,
        database: Database,
        preflight: Preflight,
        telemetry: TelemetryStore,
        clock: Clock,
        *,
        is_listed: IsListed,
    ) -> None:
        self._database = database
        self._preflight = preflight
        self._telemetry = telemetry
        self._clock = clock
        self._is_listed = is_listed

    def plan(self, request: RolloutRequest, *, limit: int) -> RolloutPlan:
        """Return what a rollout would do.

        Args:
            request: The rollout.
            limit: How many devices are named in each place.

        Returns:
            The stages with their devices, and what they need.

        Raises:
            InvalidRequestError: Stages or gates that make no sense.
            SelectorError: The selector cannot be read.
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked or is on no list, or there is a rollout of the
                identifier.
            FleetError: The files of the release cannot be read.
        """
        stage_checks.check_stages(request)
        rollout_checks.check_control(request)
        own = stage_checks.own_gates(self._telemetry, request)
        gates = rollout_checks.gate_texts(self._telemetry, request)
        read = self._read(request, limit=limit)
        unfit = preflight.refusing(read.judged)
        left_out = {} if request.unfit == "allow" else unfit
        takes = not _reasons(partial(supersession.refuse, read.met, request))
        busy = {} if takes else {name: met.rollout for met in read.met for name in _of(met)}
        later = {name for met in read.met for name in met.stays} if takes else set()
        members = [fact for fact in read.facts if fact.id not in {*left_out, *later}]
        rollout = request.id or follow_ups.new_id()
        names = [fact.id for fact in members]
        specs = stage_checks.specs(request.stages, read.order, names)
        placed = places(read.order, rollout, names)
        planned = plan(
            [_planned(placed[fact.id], fact, read.judged[fact.id]) for fact in members],
            specs,
            has_gates=bool(gates or own),
            control_percent=request.control_percent,
        )
        sizes = _sizes(read.offered, members, read.judged)
        now = local_time(self._clock.now_s())
        times = planned_times.of_stages(request, specs, planned, read.earlier, begins=now)
        return RolloutPlan(
            id=rollout,
            release=read.report.release,
            selector=request.selector,
            refused=_reasons(
                partial(rollout_checks.refuse_being_made, read.making, read.model),
                partial(supersession.refuse, read.met, request),
                partial(supersession.refuse_started, read.met, members),
                partial(rollout_checks.check_any, request, read.facts),
                partial(rollout_checks.check_unfit, request, unfit, len(read.facts)),
                partial(stage_checks.check_chosen, request, read.order, names),
                partial(rollout_checks.check_growing, specs, len(members)),
                partial(stage_checks.check_gates, request, planned.specs, read.order, names),
                partial(stage_checks.check_older, request, is_first=read.is_first),
                partial(check_devices, specs, read.order, read.model, read.digest, members),
                partial(check_agreement, self._database, self._telemetry, request),
            ),
            devices=len(members),
            busy=_busy(busy, limit),
            supersedes=[_superseded(met, limit) for met in read.met if takes],
            preflight=read.report,
            stages=[
                _shown(
                    stage,
                    spec,
                    request,
                    limit,
                    times=each,
                    gates=own.get(stage.number, ()),
                    is_last=stage.number == len(specs),
                )
                for stage, spec, each in zip(planned.stages, specs, times, strict=True)
            ],
            control=len(planned.control),
            control_devices=[device.id for device in planned.control[:limit]],
            gates=list(gates),
            spread=request.spread,
            rate=request.rate,
            limits=ShownLimits(
                **{part.name: getattr(request, part.name) for part in fields(ShownLimits)}
            ),
            windows=list(request.windows),
            opens_in_s=planned_times.opens_in_s(request, now),
            total_bytes=sum(size for size in sizes.values() if size is not None),
            unknown_bytes=sum(size is None for size in sizes.values()),
            by_profile=_by_kind(sizes, {fact.id: fact.profile_name for fact in members}),
            by_network=self._by_network(sizes),
            earlier=_install_times(read.earlier),
            expected_s=_total(expected_s for expected_s, _ in times),
            slow_s=_total(slow_s for _, slow_s in times),
        )

    def _read(self, request: RolloutRequest, *, limit: int) -> _Read:
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            selector = read_selector(transaction, request.selector, now_s=now_s)
            shadow_checks.check_selector(transaction, request)
            release = releases.get_published(transaction, request.release)
            if request.id is not None:
                rollout_checks.check_id(transaction, request.id)
            rollout_checks.check_listed(release, self._is_listed)
            matching = device_facts.of_selector(transaction, selector)
            facts = [fact for fact in matching if fact.state == DeviceState.ENROLLED]
            judged = self._preflight.answers(
                transaction, release, facts, is_windowed=bool(request.windows)
            )
            names = [fact.id for fact in matching]
            chosen = stage_checks.wanted_selectors(request)
            took_s = install_times.took_s(transaction, release.name, limit=MAX_EARLIER)
            return _Read(
                model=release.name,
                digest=release.digest,
                is_first=releases.is_first(transaction, release),
                offered=self._preflight.offered(release),
                facts=facts,
                judged=judged,
                met=supersession.meeting(transaction, release.name, selector),
                making=rollout_work.making(transaction, release.name),
                report=preflight.report(
                    release,
                    request.selector,
                    facts,
                    judged,
                    limit=limit,
                    shut_out=len(matching) - len(facts),
                ),
                earlier=earlier_installs(took_s),
                order=starting_orders.chosen(
                    transaction, chosen, request.spread, names, now_s=now_s
                ),
            )

    def _by_network(self, sizes: Mapping[str, int | None]) -> list[PlannedBytes]:
        """Return what devices fetch by network; empty if none has told of its networks."""
        now_s = self._clock.now_s()
        asked = Query(
            metric=FETCHED,
            group_by=(DEVICE, NETWORK),
            statistics=("total",),
            since_s=max(0.0, now_s - NETWORKS_S),
            until_s=now_s,
        )
        try:
            rows = run(self._telemetry, asked).rows
        except QueryError:  # no agent of this fleet bounds a network, or there is too much to tell
            return []
        fetched: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for device, network, total in rows:
            if str(device) in sizes and isinstance(total, int | float):
                fetched[str(device)][str(network)] = float(total)
        if not fetched:
            return []
        return _by_kind(sizes, {name: max(of, key=of.__getitem__) for name, of in fetched.items()})


def _planned(place: int, fact: DeviceFacts, said: Verdict) -> PlannedDevice:
    return PlannedDevice(
        id=fact.id,
        profile=fact.profile_name,
        place=place,
        is_online=fact.online,
        runs_it=said.answer is Answer.RUNS,
    )


def _reasons(*checks: Callable[[], None]) -> list[str]:
    """Return what the checks of a new rollout refuse, in the words of each."""
    reasons = []
    for check in checks:
        try:
            check()
        except ControllerError as exc:
            reasons.append(f"{exc.message}; {exc.remedy}" if exc.remedy else exc.message)
    return reasons


def _busy(busy: Mapping[str, str], limit: int) -> list[BusyDevices]:
    by_rollout: defaultdict[str, list[str]] = defaultdict(list)
    for device, rollout in sorted(busy.items()):
        by_rollout[rollout].append(device)
    return [
        BusyDevices(rollout=rollout, count=len(names), devices=names[:limit])
        for rollout, names in sorted(by_rollout.items())
    ]


def _of(met: Met) -> list[str]:
    return [*met.moves, *met.stays]


def _superseded(met: Met, limit: int) -> SupersededDevices:
    return SupersededDevices(
        rollout=met.rollout,
        moves=len(met.moves),
        stays=len(met.stays),
        devices=sorted(met.moves)[:limit],
    )


def _sizes(
    offered: OfferedRelease, facts: Sequence[DeviceFacts], judged: Mapping[str, Verdict]
) -> dict[str, int | None]:
    """Return how many bytes each device fetches at most; None where that is not known."""
    by_kind: dict[tuple[str, str | None], int | None] = {}
    sizes: dict[str, int | None] = {}
    for fact in facts:
        kind = fact.kind.profile, fact.kind.runtimes
        if kind not in by_kind:
            profile = profile_of(*kind)
            by_kind[kind] = None if profile is None else offered.size_on(profile)
        sizes[fact.id] = 0 if judged[fact.id].answer is Answer.RUNS else by_kind[kind]
    return sizes


def _by_kind(sizes: Mapping[str, int | None], kinds: Mapping[str, str]) -> list[PlannedBytes]:
    """Return what devices fetch, by their kind, most bytes first; those without one come last."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for device, size_bytes in sizes.items():
        if size_bytes is not None:
            found[kinds.get(device, "")].append(size_bytes)
    rows = [
        PlannedBytes(kind=kind, devices=len(each), each_bytes=max(each), total_bytes=sum(each))
        for kind, each in found.items()
    ]
    return sorted(rows, key=lambda row: (not row.kind, -row.total_bytes, row.kind))


def _own(own: T | None, usual: T) -> T:
    return usual if own is None else own


def _total(times: Iterable[float | None]) -> float | None:
    known = [each for each in times if each is not None]
    return sum(known) if known else None


def _install_times(earlier: EarlierInstalls | None) -> InstallTimes | None:
    if earlier is None:
        return None
    return InstallTimes(count=earlier.count, median_s=earlier.median_s, slow_s=earlier.slow_s)


def _shown(
    stage: StagePlan,
    spec: StageSpec,
    request: RolloutRequest,
    limit: int,
    *,
    times: tuple[float | None, float | None],
    gates: Sequence[str],
    is_last: bool,
) -> PlannedStage:
    return PlannedStage(
        number=stage.number,
        target=stage.target,
        count=len(stage.devices),
        offline=sum(not device.is_online for device in stage.devices),
        devices=[device.id for device in stage.devices[:limit]],
        profiles=dict(sorted(Counter(device.profile for device in stage.devices).items())),
        asks_gates=stage.asks_gates and bool(gates or request.gates),
        selector=spec.selector,
        soak_s=_own(spec.soak_s, request.soak_s),
        approval=_own(spec.approval, request.approval) and not is_last,
        gates=list(gates),
        shadow=StageShadow(**asdict(spec.shadow)) if spec.shadow else None,
        expected_s=times[0],
        slow_s=times[1],
    )
