"""Makes what serves a model, chooses its variant and lets requests wait, as configured."""

from __future__ import annotations

import os
from typing import Final

from agent.app.config import AgentConfig, serving_settings
from agent.install.slots import Slots
from agent.packages import Damage, Package, SignedFiles, open_package
from agent.select.adaptation import Adaptation
from agent.select.adaptations import Adaptations
from agent.select.meter import Meter
from agent.serve.deferred.queue import DeferredQueue
from agent.serve.deferred.runner import DeferredRunner
from agent.serve.deferred.store import DeferredStore
from agent.serve.model_server import ModelServer
from agent.serve.served import ServedModels
from telemetry.device.recorder import Recorder
from wire.clock import Clock
from wire.profile import DeviceProfile
from wire.trust.root import Trust

DEFERRED_DIRECTORY: Final = "deferred"


def make_serving(
    config: AgentConfig,
    profile: DeviceProfile,
    trust: Trust,
    slots: Slots,
    *,
    damage: Damage,
    recorder: Recorder,
    clock: Clock,
) -> tuple[ModelServer, Adaptation]:
    """Make the model server of a model, and what chooses its variant; nothing runs yet.

    Args:
        config: The configuration of this device.
        profile: What the device has.
        trust: Who may sign packages.
        slots: Where packages are.
        damage: What was found damaged on this device.
        recorder: Takes figures and events.
        clock: For deadlines.

    Returns:
        Both.

    Raises:
        ConfigError: A bound on serving is impossible.
    """

    def opened(digest: str) -> Package:
        directory, serving = slots.directory(digest), adaptation.package
        # Its index was checked when it came into service.
        if serving is not None and (serving.digest, serving.directory) == (digest, directory):
            return serving
        return open_package(directory, digest, trust)

    model_server = ModelServer(
        recorder,
        clock,
        device=config.device,
        settings=serving_settings(config, threads=profile.threads, processors=os.cpu_count() or 1),
        signed=SignedFiles(opened, damage),
    )
    meter = Meter(clock)
    model_server.router.greet(meter.came)
    model_server.router.listen(meter.count)
    adaptation = Adaptation(
        model_server,
        profile,
        meter,
        recorder,
        clock,
        benches=model_server.benches,
        damage=damage,
        cpu_share=min(profile.threads / (os.cpu_count() or 1), 1.0),
    )
    if config.policy is not None:
        adaptation.policy = config.policy
    return model_server, adaptation


def make_deferral(
    config: AgentConfig,
    models: ServedModels,
    adaptations: Adaptations,
    *,
    recorder: Recorder,
    clock: Clock,
) -> DeferredRunner:
    """Make what runs deferrable requests; nothing runs yet, and nothing was read.

    Args:
        config: The configuration of this device.
        models: Answer the requests.
        adaptations: Know whether the device has nothing better to do.
        recorder: Takes figures and events.
        clock: For expiry.

    Returns:
        The runner, with its queue.
    """
    store = DeferredStore(
        config.state_dir / DEFERRED_DIRECTORY, config.deferred.disk_bytes, recorder
    )
    queue = DeferredQueue(config.deferred, store, recorder, clock)
    return DeferredRunner(queue, models, lambda: not adaptations.advice().defer)
