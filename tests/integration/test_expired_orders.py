"""A device with trusted metadata and a desired state that is out of date, or ahead of it."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from agent.app.config import AgentConfig
from agent.app.desired_states import DesiredStates
from agent.app.models import Models
from agent.app.refusals import Refusals
from agent.log import Log
from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import Recorder
from tests.simulators.device import SimulatedDevice
from tests.simulators.repository import DAY_S, Repository
from wire.codec import to_json
from wire.desired import DESIRED_PAYLOAD_TYPE, DesiredModels
from wire.installs import Refusal
from wire.trust.envelope import seal
from wire.trust.roles import DIRECTOR


class Ordered:
    """A device that believes a fleet's metadata, and takes desired states that order no model."""

    def __init__(self, path: Path) -> None:
        self.device = SimulatedDevice(path / "device")
        self.device.boot()
        self.fleet = Repository(now_s=self.device.clock.now_s())
        self.told: list[Refusal] = []
        self.lines = io.StringIO()
        self.asked = 0
        self.path = path
        self.root = self.fleet.write_root(path / "root.json")
        self.start()
        assert self.trust.receive(self.fleet.files())

    def start(self) -> None:
        """Start the agent, with what is on the disk."""
        recorder = Recorder(self.device.clock)
        self.trust = MetadataTrust(
            self.root,
            self.fleet.authored.fleet,
            self.path / "trust",
            recorder,
            self.device.clock,
            on_missing=self._ask,
        )
        self.states = DesiredStates(
            AgentConfig(device="dev-1", state_dir=self.path, profile=self.path, trust=self.path),
            self.trust,
            boot_id="this start",
            store=self.device.files,
            slots=self.device.slots,
            models=Models(lambda _name: pytest.fail("no model is ordered"), lambda _model: None),
            recorder=recorder,
            refusals=Refusals("dev-1", self.told.append, recorder, self.device.clock),
            log=Log(self.device.clock, self.lines),
            clock=self.device.clock,
        )

    def _ask(self) -> None:
        self.asked += 1

    def order(
        self,
        revision: int,
        *,
        lives_s: float | msgspec.UnsetType = msgspec.UNSET,
        timestamp: int | msgspec.UnsetType = msgspec.UNSET,
    ) -> int:
        """Send a desired state; return the revision that the device follows then."""
        now_s = self.device.clock.now_s()
        ends_s = msgspec.UNSET if isinstance(lives_s, msgspec.UnsetType) else now_s + lives_s
        state = DesiredModels(
            device="dev-1",
            revision=revision,
            issued_at_s=now_s,
            models=(),
            expires_at_s=ends_s,
            timestamp=timestamp,
        )
        key = self.fleet.director
        self.states.receive(seal(to_json(state), payload_type=DESIRED_PAYLOAD_TYPE, keys=[key]))
        return self.device.files.state.revision


@pytest.fixture
def ordered(tmp_path: Path) -> Ordered:
    return Ordered(tmp_path)


def test_an_order_that_has_expired_is_not_followed_and_a_new_one_is_asked_for(
    ordered: Ordered,
) -> None:
    assert ordered.order(1, lives_s=DAY_S) == 1
    assert ordered.order(2, lives_s=-60.0) == 1
    assert (ordered.asked, ordered.told) == (1, [])  # it is nobody's fault
    assert "the desired state expired a moment ago" in ordered.lines.getvalue()
    assert ordered.order(3, lives_s=DAY_S) == 3


def test_an_order_that_knows_newer_metadata_waits_for_it(ordered: Ordered) -> None:
    newest = ordered.fleet.online.timestamp.signed.version
    assert ordered.order(1, timestamp=newest + 1) == 0
    assert ordered.asked == 1
    assert "knows of newer metadata" in ordered.lines.getvalue()
    assert ordered.order(1, timestamp=newest) == 1


def test_an_order_without_an_end_is_of_an_earlier_controller_and_counts(ordered: Ordered) -> None:
    assert ordered.order(1) == 1


def test_no_restart_lets_an_order_count_whose_key_was_taken_away(ordered: Ordered) -> None:
    digest = "0" * 64
    ordered.fleet.list("digits", "1.0.0", digest)
    assert ordered.trust.receive(ordered.fleet.files(), now=True)
    assert ordered.order(1) == 1
    assert ordered.trust.later("digits", "1.0.0", digest) is None
    ordered.fleet.rotate(DIRECTOR)
    assert ordered.trust.receive(ordered.fleet.files(), now=True)
    for _ in range(2):
        why = ordered.trust.later("digits", "1.0.0", digest)
        assert why is not None
        assert "waits for a new order" in why
        ordered.start()
        ordered.states.restore()
    assert ordered.order(2) == 2
    assert ordered.trust.later("digits", "1.0.0", digest) is None
