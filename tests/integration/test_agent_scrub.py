"""A real agent reads its stored packages again: damage is found and mended where it serves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.simulators.agent_process import FIRST, Controller, Device, null_package
from tests.simulators.patience import until
from wire.presence import Hello

pytestmark = pytest.mark.broker

SECOND = null_package("2.0.0", padding_bytes=300_000)
BEST = "variants/best/model.json"


@pytest.fixture
def reading(device: Device, controller: Controller) -> Device:
    """Return a device that begins a new pass as soon as one is over, with two packages."""
    with device.config_path.open("a") as config:
        config.write("[scrub]\nevery_days = 0.00001\n")
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    for revision, wanted in enumerate((FIRST, SECOND), 1):
        controller.desire(revision, wanted)
        assert controller.outcome(revision).outcome == "succeeded"
    return device


def damage(device: Device, digest: str, path: str) -> Path:
    """Change a bit of a stored file; return the file."""
    file = device.config.state_dir / "packages" / digest / path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


def test_damage_of_what_serves_is_found_without_a_restart_and_mended(
    reading: Device, controller: Controller
) -> None:
    path = next(path for path in SECOND.files if path.endswith("padding.bin"))
    file = damage(reading, SECOND.digest, path)
    found = controller.event("damage")
    assert found.reason == f"{path} of digits:2.0.0 differs from the signed file"
    assert found.data["found"] == "scrub"
    controller.event("install", lambda e: e.data["repair"] and e.data["outcome"] == "succeeded")
    assert file.read_bytes() == SECOND.files[path]
    assert reading.infer()[0]["release"] == "digits:2.0.0"
    told = reading.command("why", "--kind", "damage", "--since", "1h").stdout
    assert "differs from the signed file" in told


@pytest.mark.thorough
def test_the_version_before_is_mended_too(reading: Device, controller: Controller) -> None:
    file = damage(reading, FIRST.digest, BEST)
    controller.event("damage", lambda e: e.reason == "digits:1.0.0 is whole again")
    assert file.read_bytes() == FIRST.files[BEST]
    assert not [event for event in controller.events if event.kind == "drift"]


def test_a_damaged_variant_is_not_loaded_and_another_one_serves_until_it_is_mended(
    reading: Device, controller: Controller
) -> None:
    reading.end(signal.SIGTERM)
    kept = reading.config.state_dir / "scrub.json"
    assert kept.exists(), "a stop saves how far it is"
    controller.chunks.blobs.clear()
    file = damage(reading, SECOND.digest, BEST)
    reading.start()
    found = controller.event("damage", lambda e: e.data["found"] == "start")
    assert found.data["variants"] == ["best"]
    assert reading.infer()[0]["variant"] == "small"
    controller.chunks.add(*SECOND.blobs)
    until(lambda: file.read_bytes() == SECOND.files[BEST], "the file is there again")
    until(lambda: reading.infer()[0]["variant"] == "best", "the best variant serves")
