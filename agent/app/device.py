"""This device, as its parts know it: configuration, trust, runtimes, clocks, log."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from agent.app.config import AgentConfig
from agent.app.named_files import load_profile, load_trust
from agent.app.runtimes import usable_profile
from agent.errors import ConfigError, storage_faults
from agent.interrupts import Interrupts
from agent.log import Log
from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import OnEvent, Recorder
from wire.clock import Clock
from wire.files import Lock, lock, make_directory
from wire.profile import DeviceProfile
from wire.trust.root import Trust

LOGGED: Final = frozenset(
    {"from", "to", "variant", "release", "code", "revision", "outcome", "phase", "gap_ms", "hook"}
)
"""Fields of events that go into the log; the spool has all of them."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What most parts need to know about this device."""

    lock: Lock
    """The lock of the state directory, which the process holds as long as it lives."""

    config: AgentConfig
    declared: DeviceProfile
    """The profile of this kind of device, as the controller knows it."""

    profile: DeviceProfile
    """The same, with the runtimes that are installed here."""

    trust: Trust
    boot_id: str
    clock: Clock
    log: Log
    recorder: Recorder
    interrupts: Interrupts

    @property
    def metadata(self) -> MetadataTrust | None:
        """The trusted metadata; None where a trust file takes its place."""
        return self.trust if isinstance(self.trust, MetadataTrust) else None


def make_device(config: AgentConfig, clock: Clock) -> Device:
    """Take the state directory, and read what the configuration names.

    Args:
        config: The configuration of this device.
        clock: The device's clocks.

    Returns:
        The device.

    Raises:
        FleetError: A file or the state directory cannot be used, or another agent uses it.
    """
    log = Log(clock)
    declared = load_profile(config)
    with storage_faults("cannot make the state directory"):
        make_directory(config.state_dir)
    locked = _locked(config.state_dir)
    recorder = Recorder(clock, _logging(log))
    trust = load_trust(config, recorder, clock)
    return Device(
        lock=locked,
        config=config,
        declared=declared,
        profile=usable_profile(declared, recorder),
        trust=trust,
        boot_id=secrets.token_hex(8),
        clock=clock,
        log=log,
        recorder=recorder,
        interrupts=Interrupts(clock),
    )


def _logging(log: Log) -> OnEvent:
    """Return a function that writes the main fields of each event as a line of the log."""

    def write(kind: str, reason: str, data: Mapping[str, object]) -> None:
        log.write(kind, reason=reason, **{k: v for k, v in data.items() if k in LOGGED})

    return write


def _locked(state_dir: Path) -> Lock:
    """Lock a state directory for this process alone.

    Raises:
        ConfigError: Another agent uses it.
    """
    with storage_faults("cannot open the state directory"):
        locked = lock(state_dir)
    if locked is None:
        raise ConfigError(
            "another agent uses this state directory", remedy="stop it or choose another state_dir"
        )
    return locked
