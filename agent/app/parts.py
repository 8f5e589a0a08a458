"""What the daemon starts, runs and stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.app.capturing import Capturing
from agent.app.control import ControlServer
from agent.app.desired_states import DesiredStates
from agent.app.messages import Messages
from agent.app.models import Models
from agent.app.sensing import Sensing
from agent.app.sharing import Sharing
from agent.app.watchdog import Watchdog
from agent.install.scrub.scrubber import Scrubber
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.link.connector import Connector
from agent.link.telemetry import TelemetryPump
from agent.log import Log
from agent.serve.deferred.runner import DeferredRunner
from agent.serve.http.endpoint import Endpoint
from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import Recorder
from wire.files import Lock

if TYPE_CHECKING:
    from agent.grpc_endpoint.keeper import GrpcKeeper
    from agent.serve.feedback.intake import Feedback


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that the daemon starts, runs and stops."""

    lock: Lock
    """The lock of the state directory, which the process holds as long as it lives."""

    boot_id: str
    faults: tuple[str, ...]
    """What was wrong with the record of the installs, each as a line for the operator."""

    log: Log
    recorder: Recorder
    interrupts: Interrupts
    endpoint: Endpoint
    grpc: GrpcKeeper | None
    """None if the configuration asks for no gRPC."""

    control: ControlServer | None
    """None if its socket cannot be made, as on a read-only disk."""

    sensing: Sensing
    desired_states: DesiredStates
    models: Models
    connector: Connector
    link: Link
    messages: Messages
    sharing: Sharing | None
    """None if the configuration lets nobody fetch from this device."""

    pump: TelemetryPump
    capturing: Capturing
    watchdog: Watchdog
    scrubber: Scrubber
    metadata: MetadataTrust | None
    """None where a trust file takes its place."""

    deferral: DeferredRunner
    feedback: Feedback | None
    """None if the configuration asks for none."""
