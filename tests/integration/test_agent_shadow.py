"""An agent that runs a shadow beside the release that serves; the test plays the controller."""

from __future__ import annotations

import itertools
import signal
from collections import Counter

import msgspec
import pytest

from telemetry.histogram import ExponentialHistogram
from tests.simulators.agent_process import (
    DEVICE,
    FIRST,
    POLICY,
    Controller,
    Device,
    null_package,
)
from tests.simulators.packages import DIRECTOR_KEY, SignedPackage
from tests.simulators.patience import until
from wire.desired import (
    DESIRED_PAYLOAD_TYPE,
    NAMED_MODELS,
    DesiredModels,
    ModelState,
    desired_to_json,
)
from wire.messages import decode_message
from wire.presence import Hello
from wire.shadow import ShadowRule
from wire.telemetry import GaugePoint, HistogramPoint, SumPoint, TelemetryBatch
from wire.topics import down, parse_up
from wire.trust.envelope import seal

pytestmark = pytest.mark.broker
REVISIONS = itertools.count(2)
ALIKE = null_package("2.0.0")
"""Answers as the first one."""

OTHER = null_package("3.0.0", names=("small",))
"""The variant that serves answers otherwise."""


def order(controller: Controller, shadow: SignedPackage | None, *, share: float = 1.0) -> None:
    """Let the device run a shadow beside the first release, or none."""
    if shadow is not None:
        controller.chunks.add(*shadow.blobs)
    rule = ShadowRule(release=shadow.ref, share=share) if shadow is not None else msgspec.UNSET
    model = ModelState(name="digits", revision=1, release=FIRST.ref, policy=POLICY, shadow=rule)
    wanted = DesiredModels(
        device=DEVICE, revision=next(REVISIONS), issued_at_s=1.0, models=(model,)
    )
    content = desired_to_json(wanted, form=NAMED_MODELS)
    signed = seal(content, payload_type=DESIRED_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])
    assert controller.transport.publish(down(DEVICE, "desired"), signed)


def counted(controller: Controller) -> Counter[str]:
    """Return the counters of shadows; of what was skipped by its reason."""
    found: Counter[str] = Counter()
    for received in list(controller.heard):
        if parse_up(received.topic).kind == "telemetry":
            batch = decode_message(received.payload, TelemetryBatch, packed=True)
            for point in batch.points:
                if not isinstance(point, GaugePoint) and point.metric.startswith("shadow_"):
                    reason = point.attributes.get("reason")
                    name = f"{point.metric} {reason}" if reason else point.metric
                    found[name] += round(_amount(point))
    return found


def _amount(point: HistogramPoint | SumPoint) -> float:
    return (
        point.value
        if isinstance(point, SumPoint)
        else ExponentialHistogram.from_bytes(point.blob).count
    )


def asked_until(controller: Controller, device: Device, metric: str, least: int) -> Counter[str]:
    """Ask until a counter has been reported; the release that serves answers each time."""

    def asked() -> Counter[str] | None:
        parameters, _ = device.infer()
        assert parameters["release"] == "digits:1.0.0"
        found = counted(controller)
        return found if found[metric] >= least else None

    return until(asked, f"{least} of {metric}", step_s=0.05)


def runs(controller: Controller, release: str) -> None:
    controller.event("shadow", lambda e: e.reason.startswith(f"{release} runs as the shadow of"))


def test_a_shadow_is_compared_and_serves_nobody(controller: Controller, serving: Device) -> None:
    order(controller, ALIKE)
    runs(controller, "digits:2.0.0")
    assert serving.ask("status")["shadow"] == "digits:2.0.0 runs"
    found = asked_until(controller, serving, "shadow_requests_total", 3)
    assert found["shadow_agreements_total"] == found["shadow_requests_total"]
    assert found["shadow_latency_ms"] == found["shadow_live_latency_ms"] > 0
    assert found["shadow_failures_total"] == 0

    order(controller, OTHER)
    runs(controller, "digits:3.0.0")
    before = counted(controller)
    compared = int(before["shadow_requests_total"])
    after = asked_until(controller, serving, "shadow_requests_total", compared + 2)
    assert after["shadow_agreements_total"] == before["shadow_agreements_total"]

    order(controller, null_package("4.0.0", wrong=True))
    told = controller.event("shadow", lambda e: "does not run for now" in e.reason)
    assert "golden test" in told.reason
    asked_until(controller, serving, "shadow_skipped_total failed", 1)


def test_a_shadow_goes_first_and_has_what_an_install_needs(
    controller: Controller, serving: Device
) -> None:
    state = serving.config.state_dir
    order(controller, ALIKE)
    runs(controller, "digits:2.0.0")
    serving.set_temperature_c(99)
    ended = controller.event("shadow", lambda e: "ends: heat" in e.reason)
    assert ended.data["release"] == "digits:2.0.0"
    asked_until(controller, serving, "shadow_skipped_total heat", 1)

    serving.end(signal.SIGKILL)
    serving.set_temperature_c(40)
    controller.events.clear()
    serving.start()
    runs(controller, "digits:2.0.0")

    fetched = len(controller.chunks.sent)
    revision = next(REVISIONS)
    controller.desire(revision, ALIKE)
    assert controller.outcome(revision).outcome == "succeeded"
    assert len(controller.chunks.sent) == fetched, "the package was there"
    until(lambda: not any((state / "shadows").iterdir()), "the shadow to go")
    assert serving.ask("status")["shadow"] is None


def test_what_is_not_wanted_any_more_leaves_nothing(
    controller: Controller, serving: Device
) -> None:
    state = serving.config.state_dir
    order(controller, ALIKE)
    runs(controller, "digits:2.0.0")
    order(controller, None)
    until(lambda: not (state / "packages" / ALIKE.digest).exists(), "the package to go")
    order(controller, ALIKE)
    until((state / "shadows" / "digits").is_symlink, "the package to come")

    serving.end(signal.SIGTERM)
    serving.config_path.write_text(serving.config_path.read_text() + "\n[shadow]\nallow = false\n")
    serving.start()
    until(lambda: not any((state / "shadows").iterdir()), "what it has to go")
    until(lambda: controller.all("hello", Hello)[-1].shadows is False, "a hello of it")
    assert not (state / "packages" / ALIKE.digest).exists()
    until(lambda: serving.ask("status")["release"] == FIRST.digest, "the first release")
    assert serving.ask("status")["shadow"] is None
