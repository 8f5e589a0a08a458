"""An agent that measures a package beside what it serves; the test plays the controller."""

from __future__ import annotations

import itertools
import signal

import pytest

from tests.simulators.agent_process import Controller, Device, null_package
from tests.simulators.packages import DIRECTOR_KEY, STRANGER_KEY, SignedPackage
from tests.simulators.patience import until
from wire.codec import sha256_hex, to_json
from wire.measuring import MEASURE_PAYLOAD_TYPE, Measure, Measured, check_measured
from wire.presence import Hello
from wire.topics import down
from wire.trust.envelope import SigningKey, seal

pytestmark = pytest.mark.broker
ALLOW = "\n[measure]\nallow = true\n"
NUMBERS = itertools.count(1)


def hello(controller: Controller) -> Hello:
    return until(lambda: controller.all("hello", Hello), "a hello")[-1]


def ask(
    controller: Controller,
    wanted: SignedPackage,
    *,
    boot_id: str,
    key: SigningKey = DIRECTOR_KEY,
) -> str:
    """Ask the device to measure a package; return the request's identifier."""
    controller.chunks.add(*wanted.blobs)
    number = next(NUMBERS)
    request = Measure(
        device="dev-1",
        id=f"m-{number}",
        boot_id=boot_id,
        issued_at_s=float(number),
        limit_s=600.0,
        release=wanted.ref,
    )
    signed = seal(to_json(request), payload_type=MEASURE_PAYLOAD_TYPE, keys=(key,))
    assert controller.transport.publish(down("dev-1", "measure"), signed)
    return request.id


def answer(controller: Controller, identifier: str) -> Measured:
    def find() -> Measured | None:
        return next((m for m in controller.all("measured", Measured) if m.id == identifier), None)

    return until(find, f"an answer to {identifier}")


def allow(device: Device, *, allowed: bool = True) -> None:
    if allowed:
        device.config_path.write_text(device.config_path.read_text() + ALLOW)


def serving(controller: Controller, device: Device) -> str:
    """Start the agent, install a package; return the start of the agent."""
    device.start()
    boot_id = hello(controller).boot_id
    controller.desire(1, null_package("1.0.0"))
    assert controller.outcome(1).outcome == "succeeded"
    return boot_id


def test_it_measures_each_variant_and_leaves_no_trace(
    controller: Controller, device: Device
) -> None:
    allow(device)
    boot_id = serving(controller, device)
    state = device.config.state_dir
    before = (state / "state.json").read_bytes(), sorted((state / "packages").iterdir())
    found = answer(controller, ask(controller, null_package("2.0.0"), boot_id=boot_id))
    check_measured(found)
    assert (found.state, found.reason) == ("measured", "")
    assert [v.name for v in found.variants] == ["best", "small"]
    for variant in found.variants:
        assert variant.performance is not None, variant.reason
        assert variant.performance.runs >= 1
        assert variant.performance.relative
    best, small = (v.performance for v in found.variants)
    assert best is not None
    assert small is not None
    assert best.latency_p50_ms >= 4.0, "it sleeps so long"
    assert found.temperature_before_c == found.temperature_after_c == 40.0
    event = controller.event("measure")
    assert event.reason.startswith("measured digits:2.0.0: measured: figures of 2 variants, ")
    assert f"the fastest is small with {small.latency_p50_ms:.3g} ms" in event.reason
    until(lambda: not (state / "measuring").exists(), "the package to go")
    assert before == ((state / "state.json").read_bytes(), sorted((state / "packages").iterdir()))
    assert device.ask("status")["release"] == null_package("1.0.0").digest


def test_a_device_whose_owner_does_not_allow_it_refuses(
    controller: Controller, device: Device
) -> None:
    device.start()
    identifier = ask(controller, null_package("2.0.0"), boot_id=hello(controller).boot_id)
    found = answer(controller, identifier)
    assert (found.state, found.variants) == ("refused", ())
    assert "[measure]" in found.reason


def test_a_hot_device_refuses(controller: Controller, device: Device) -> None:
    allow(device)
    device.set_temperature_c(99)
    device.start()
    identifier = ask(controller, null_package("2.0.0"), boot_id=hello(controller).boot_id)
    found = answer(controller, identifier)
    assert found.state == "refused"
    assert "heat" in found.reason


def test_a_restart_ends_it_and_the_next_start_says_so(
    controller: Controller, device: Device
) -> None:
    allow(device)
    device.start()
    identifier = ask(controller, null_package("2.0.0"), boot_id=hello(controller).boot_id)
    job = device.config.state_dir / "measuring" / "job"
    until(job.exists, "a process that measures")
    device.end(signal.SIGKILL)
    device.start()
    found = answer(controller, identifier)
    assert (found.state, found.variants) == ("interrupted", ())
    assert not (device.config.state_dir / "measuring").exists()


@pytest.mark.thorough
def test_a_variant_that_answers_wrong_has_a_reason_and_no_figures(
    controller: Controller, device: Device
) -> None:
    allow(device)
    device.start()
    wanted = null_package("2.0.0", wrong=True)
    found = answer(controller, ask(controller, wanted, boot_id=hello(controller).boot_id))
    reasons = {v.name: v.reason for v in found.variants}
    assert "golden" in reasons["best"]
    assert not reasons["small"]


def test_what_nobody_may_order_is_not_answered(controller: Controller, device: Device) -> None:
    allow(device)
    device.start()
    boot_id = hello(controller).boot_id
    wanted = null_package("2.0.0")
    forged = ask(controller, wanted, boot_id=boot_id, key=STRANGER_KEY)
    stale = ask(controller, wanted, boot_id="another start")
    good = ask(controller, wanted, boot_id=boot_id)
    answer(controller, good)
    ids = {m.id for m in controller.all("measured", Measured)}
    assert not ids & {forged, stale}


def test_an_install_goes_first_also_while_the_package_comes(
    controller: Controller, device: Device
) -> None:
    allow(device)
    device.start()
    wanted = null_package("2.0.0", padding_bytes=200_000)
    held = {sha256_hex(blob) for blob in wanted.blobs if len(blob) >= 200_000}
    controller.chunks.tamper = lambda chunk: None if chunk.sha256 in held else chunk
    identifier = ask(controller, wanted, boot_id=hello(controller).boot_id)
    place = device.config.state_dir / "measuring" / "parts"
    until(lambda: place.is_dir() and any(place.iterdir()), "a file that comes")
    controller.desire(1, null_package("1.0.0"))
    assert controller.outcome(1).outcome == "succeeded"
    found = answer(controller, identifier)
    assert (found.state, found.variants) == ("refused", ())
    assert "an install" in found.reason
    assert not place.exists()


@pytest.mark.thorough
def test_a_device_measures_one_package_at_a_time(controller: Controller, device: Device) -> None:
    allow(device)
    device.start()
    boot_id = hello(controller).boot_id
    first = ask(controller, null_package("2.0.0"), boot_id=boot_id)
    second = ask(controller, null_package("3.0.0"), boot_id=boot_id)
    assert "another package" in answer(controller, second).reason
    assert answer(controller, first).state == "measured"


def test_a_device_that_becomes_hot_stops_and_tells_what_it_has(
    controller: Controller, device: Device
) -> None:
    allow(device)
    device.start()
    identifier = ask(controller, null_package("2.0.0"), boot_id=hello(controller).boot_id)
    job = device.config.state_dir / "measuring" / "job"
    until(job.exists, "a process that measures")
    device.set_temperature_c(99)
    found = answer(controller, identifier)
    assert found.state == "refused"
    assert "heat" in found.reason
    assert len(found.variants) < 2
    assert found.temperature_after_c == 99.0


@pytest.mark.thorough
def test_storage_that_fails_loses_nothing_of_what_was_measured(
    controller: Controller, device: Device
) -> None:
    allow(device)
    device.start()
    identifier = ask(controller, null_package("2.0.0"), boot_id=hello(controller).boot_id)
    place = device.config.state_dir / "measuring"

    def second() -> bool:
        try:
            return b"/small" in (place / "job").read_bytes().partition(b"reference")[0]
        except OSError:
            return False

    until(second, "the second variant")
    (place / "job.result").mkdir()  # nothing can be written there
    found = answer(controller, identifier)
    assert found.state == "refused"
    assert "storage" in found.reason
    (best,) = found.variants
    assert best.name == "best"
    assert best.performance is not None
    assert "Traceback" not in (device.directory / "log").read_text()
    until(lambda: not place.exists(), "the package to go")


def test_a_package_that_is_not_signed_is_not_measured(
    controller: Controller, device: Device
) -> None:
    allow(device)
    device.start()
    wanted = null_package("2.0.0", key=STRANGER_KEY)
    found = answer(controller, ask(controller, wanted, boot_id=hello(controller).boot_id))
    assert (found.state, found.variants) == ("refused", ())
    assert "sign" in found.reason
