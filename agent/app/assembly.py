"""Makes the agent's parts from its configuration and connects them; nothing runs yet."""

from __future__ import annotations

from functools import partial

from agent.app.by_hand import ByHand
from agent.app.capturing import Capturing
from agent.app.commands import Commands
from agent.app.config import AgentConfig
from agent.app.connecting import connector
from agent.app.control import SOCKET_FILE, ControlServer, check_path
from agent.app.desired_states import DesiredStates
from agent.app.device import Device, make_device
from agent.app.endpoint import make_endpoint, make_feedback
from agent.app.fetching import make_fetching
from agent.app.golden_figures import record_golden
from agent.app.grpc_process import make_grpc
from agent.app.hello import hello
from agent.app.hooking import make_override
from agent.app.host_figures import HostFigures
from agent.app.installed import adopt, open_store
from agent.app.learnt_file import LearntFile
from agent.app.measuring import make_measurer
from agent.app.messages import Messages
from agent.app.model_parts import ModelMaker
from agent.app.models import Models
from agent.app.parts import Parts
from agent.app.refusals import Refusals
from agent.app.sensing import Sensing
from agent.app.serving import make_deferral
from agent.app.shadowing import Shadowing, ShadowParts
from agent.app.sharing import make_sharing
from agent.app.spooling import make_pump
from agent.app.watchdog import Watchdog, check_start_timeout
from agent.errors import ControlError
from agent.install.conditions import tired
from agent.install.preload import Preload
from agent.install.scrub.scrubber import Scrubber
from agent.install.slots import Slots
from agent.install.store import FileStateStore
from agent.link.connection import Link
from agent.link.outage import Outage
from agent.link.renewal import Renewal
from agent.packages import Damage, open_package
from agent.select.adaptations import Adaptations
from agent.serve.served import ServedModels
from telemetry.device.sensors import Sensors
from telemetry.device.sensors.host import HostSensors
from wire.clock import Clock
from wire.enrolment import return_password


def assemble(config: AgentConfig, clock: Clock) -> Parts:
    """Make the parts; nothing runs yet.

    Args:
        config: The configuration of this device.
        clock: The device's clocks.

    Returns:
        The parts.

    Raises:
        FleetError: A file, the state directory, the endpoint or the control socket cannot be
            used, another agent uses the state directory, or systemd waits less long than asked.
    """
    check_start_timeout(config.serving.start_timeout_s)
    device = make_device(config, clock)
    declared, profile, trust = device.declared, device.profile, device.trust
    log, recorder = device.log, device.recorder
    slots, damage = Slots(config.state_dir), Damage(recorder)
    adopt(device, slots)
    store = open_store(device, slots)
    broker = f"{config.broker.host}:{config.broker.port}"
    link = Link(
        config.device,
        device.boot_id,
        Outage(broker, device.recorder, clock),
        lambda: return_password(trust.fleet_names[0]),
    )
    renewal = Renewal(config.device, link, trust, clock)
    fetching = make_fetching(
        config, trust, link, interrupts=device.interrupts, log=log, recorder=recorder, clock=clock
    )
    adaptations, served = Adaptations(clock), ServedModels(clock)
    override = make_override(config, fetching.budgets, recorder, clock)
    scrubber = Scrubber(
        config.scrub,
        profile,
        slots,
        opened=lambda digest: open_package(slots.directory(digest), digest, trust),
        damage=damage,
        may_read=lambda: not (tired(adaptations.health) or adaptations.advice().defer),
        directory=config.state_dir,
        recorder=recorder,
        clock=clock,
    )
    maker = ModelMaker(
        config=config,
        profile=profile,
        trust=trust,
        store=store,
        slots=slots,
        damage=damage,
        scrubber=scrubber,
        fetching=fetching,
        adaptations=adaptations,
        served=served,
        override=override,
        make_room=lambda: shadowing.make_room(),  # noqa: PLW0108 - it is made below
        link=link,
        interrupts=device.interrupts,
        log=log,
        recorder=recorder,
        clock=clock,
    )
    models = Models(maker.make, maker.forget)
    shadowing = Shadowing(
        ShadowParts(
            config=config,
            profile=profile,
            trust=trust,
            store=store,
            slots=slots,
            fetcher=fetching.fetcher,
            adaptations=adaptations,
            router=models.router,
            installs=lambda: bool(models.pending),
            interrupts=device.interrupts,
            log=log,
            recorder=recorder,
            clock=clock,
        )
    )
    pump = make_pump(
        config,
        link,
        boot_id=device.boot_id,
        policies=lambda: [model.adaptation.policy for model in models],
        recorder=recorder,
        clock=clock,
    )
    capturing = Capturing(
        config,
        link,
        models=lambda: models,
        may_send=lambda: pump.is_through,
        recorder=recorder,
        log=log,
        clock=clock,
    )
    served.listen(capturing.took)
    refusals = Refusals(config.device, link.refuse, device.recorder, clock)
    desired_states = DesiredStates(
        config,
        trust,
        boot_id=device.boot_id,
        store=store,
        slots=slots,
        models=models,
        recorder=device.recorder,
        refusals=refusals,
        log=log,
        clock=clock,
        capture=capturing.follow,
        shadow=shadowing.follow,
    )
    sharing = make_sharing(
        config,
        trust,
        slots,
        is_coming=lambda sha256: fetching.coming.sha256 == sha256,
        health=lambda: adaptations.health,
        log=log,
        recorder=recorder,
        clock=clock,
    )
    measurer = make_measurer(
        config,
        profile,
        trust,
        boot_id=device.boot_id,
        slots=slots,
        is_busy=lambda: bool(models.pending),
        fetcher=fetching.fetcher,
        adaptations=adaptations,
        link=link,
        interrupts=device.interrupts,
        recorder=recorder,
        clock=clock,
    )
    messages = Messages(
        link,
        lambda: hello(device, store, models, sharing),
        trust=device.metadata,
        desired_states=desired_states,
        fetching=fetching,
        sharing=sharing,
        measurer=measurer,
        pump=pump,
        capturing=capturing,
        renewal=renewal,
        log=log,
        clock=clock,
    )
    deferral = make_deferral(config, served, adaptations, recorder=recorder, clock=clock)
    feedback = make_feedback(config, served, adaptations, recorder=recorder, clock=clock)
    endpoint = make_endpoint(
        config,
        served,
        log,
        deferred=deferral.queue,
        adaptations=adaptations,
        feedback=feedback,
    )
    commands = Commands(
        config.device,
        store=store,
        models=models,
        adaptations=adaptations,
        pump=pump,
        link=link,
        refusals=refusals,
        clock=clock,
        override=override,
        budgets=fetching.budgets,
        endpoint=lambda: endpoint.address,
        deferred=lambda: deferral.queue.waiting,
        own_policy=config.policy is not None,
        shadows=lambda: shadowing.status,
        metadata=device.metadata,
    )
    sysfs, procfs = config.sysfs_root, config.procfs_root
    sensors = Sensors(profile, clock, sysfs_root=sysfs, procfs_root=procfs)
    host = HostSensors(config.state_dir, sysfs_root=sysfs, procfs_root=procfs)
    figures = HostFigures(sensors, host, served, recorder, clock)
    return Parts(
        lock=device.lock,
        boot_id=device.boot_id,
        faults=store.faults,
        log=log,
        recorder=device.recorder,
        interrupts=device.interrupts,
        endpoint=endpoint,
        grpc=make_grpc(config, endpoint, log, recorder=recorder, clock=clock),
        control=_control(device, commands, _by_hand(device, desired_states, models, slots, store)),
        sensing=Sensing(
            sensors,
            device.recorder,
            adaptations,
            device.interrupts,
            interval_s=config.sense_interval_s,
            learnt=LearntFile(config.state_dir, device.recorder, device.clock),
            figures=(figures.tick, partial(record_golden, models, device.recorder)),
            keep=pump.keep,
        ),
        desired_states=desired_states,
        models=models,
        connector=connector(
            config, declared, trust, link, renewal, interrupts=device.interrupts, clock=clock
        ),
        link=link,
        messages=messages,
        sharing=sharing,
        pump=pump,
        capturing=capturing,
        watchdog=Watchdog(clock),
        scrubber=scrubber,
        metadata=device.metadata,
        deferral=deferral,
        feedback=feedback,
    )


def _by_hand(
    device: Device,
    desired_states: DesiredStates,
    models: Models,
    slots: Slots,
    store: FileStateStore,
) -> ByHand:
    interrupts = device.interrupts
    preload = Preload(
        device.profile,
        device.trust,
        slots=slots,
        store=store,
        check=lambda: interrupts.check(abandon=False),
    )
    return ByHand(
        preload,
        desired_states=desired_states,
        pending=lambda: models.pending,
        store=store,
        interrupts=interrupts,
        log=device.log,
        trust=device.metadata,
    )


def _control(device: Device, commands: Commands, by_hand: ByHand) -> ControlServer | None:
    """Make the control socket. Models serve without it.

    Raises:
        ControlError: Its path is too long.
    """
    path = device.config.state_dir / SOCKET_FILE
    check_path(path)
    try:
        return ControlServer(
            path,
            commands.answer,
            {"install": by_hand.install, "metadata": by_hand.metadata},
            clock=device.clock,
        )
    except ControlError as exc:
        reason = f"`fleet-agent status`, `pin`, `why` and `install` do not work: {exc.message}"
        device.recorder.event("storage", reason, {"code": exc.code})
        return None
