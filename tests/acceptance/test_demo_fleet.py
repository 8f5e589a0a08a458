"""The demo's package suits three kinds of boards, and its fleet survives kill -9 of each part.

A victim is killed while a good release is rolled out, and another while a bad one is; after a
restart the fleet ends where it would have ended anyway. A thorough run kills each of them in both,
and makes the demo's package, which `make demo` makes too. For kills one runtime is enough.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.digits.box import Box, stopping, until
from examples.digits.data import write_samples
from examples.digits.demo import BAD, FLEET, GOOD, HEATED, MODEL, PROFILES, Demo, rollout
from examples.digits.spoilt import spoil
from packager.device_profiles import load_profile
from tests.integration.builds import QUICK, write_profile
from tests.models import DIGITS
from tests.simulators.patience import PATIENCE_S
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes

WAIT_S = 2 * PATIENCE_S
"""For what takes whole processes several steps."""

DEAD_S = 1.5
"""How long the victim stays dead: long enough that the others notice."""

pytestmark = [pytest.mark.thorough, pytest.mark.broker, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's package, built once for all tests."""
    root = tmp_path_factory.mktemp("package")
    with stopping(Box(root / "box")) as box:
        demo = Demo(box, cache=root / "cache")
        demo.build()
        return shutil.copytree(demo.good, root / "good")


@pytest.fixture(scope="session")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for the same boards with variants for ONNX Runtime alone."""
    root = tmp_path_factory.mktemp("light")
    with stopping(Box(root / "box")) as box:
        box.initialize()
        write_samples(root / "data")
        chosen: list[str | Path] = []
        for name in PROFILES:
            shipped = load_profile(name)
            path = write_profile(
                root, "onnxruntime", name=name, architecture=shipped.architecture,
                features=shipped.isa_features,
            )  # fmt: skip
            chosen += ["--profile", path]
        box.fleet(
            "build", DIGITS, *chosen, *QUICK, "--cache", root / "cache",
            "--calibration", root / "data" / "calibration.npz",
            "--evaluation", root / "data" / "evaluation.npz", "--metric", "top1",
            "--name", MODEL, "--version", GOOD, "--key", box.release_key, "-o", root / "good",
        )  # fmt: skip
    return root / "good"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short name: the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def test_three_shipped_profiles_get_what_runs_on_them(package: Path) -> None:
    manifest = manifest_from_bytes((package / MANIFEST_FILE).read_bytes())
    runtimes = {variant.info.runtime for variant in manifest.variants}
    assert "onnxruntime" in runtimes
    assert len(runtimes) >= 2
    for profile in PROFILES:
        kept = [v.name for v in manifest.variants if profile in v.info.profiles]
        assert "onnxruntime-fp32" in kept
        assert len(kept) >= 2
    for variant in manifest.variants:
        performance = variant.info.performance
        if performance is None:
            assert set(variant.info.profiles) == {"rpi4"}, "the others can be measured here"
            continue
        assert performance.runs >= 200
        assert performance.machine.startswith(os.uname().machine)


@pytest.mark.parametrize(
    ("victim", "next_victim"),
    [
        ("controller", "agent"),
        pytest.param("broker", "controller", marks=pytest.mark.thorough),
        pytest.param("agent", "broker", marks=pytest.mark.thorough),
    ],
)
def test_a_kill_changes_no_outcome(victim: str, next_victim: str, light: Path, short: Path) -> None:
    with stopping(Box(short / "box")) as box:
        good, bad = prepare(box, light)
        Demo(box, cache=short / "cache").enrol()

        box.fleet("release", "publish", good)
        # A stage soaks no time until the devices have had a minute to come back to their broker.
        # tests/integration/test_offline_devices.py waits for that, with a clock of its own.
        first = create(box, GOOD, soak="0s" if victim == "broker" else "1s")
        kill_midway(box, victim, first)
        until("the rollout's end", lambda: state(box, first) == "succeeded", WAIT_S)
        until("all on the release", lambda: versions(box) == {f"{MODEL}:{GOOD}"}, WAIT_S)

        box.fleet("release", "publish", bad)
        second = create(box, BAD)
        kill_midway(box, next_victim, second)
        until("the halt", lambda: state(box, second) == "halted", WAIT_S)
        until("all on the good release", lambda: versions(box) == {f"{MODEL}:{GOOD}"}, WAIT_S)
        failed = [d for d in deployments(box, second) if d["state"] == "failed"]
        assert [d["error_code"] for d in failed] == ["agent.golden"]

        for name, _profile, _labels in FLEET:
            until(f"{name} serves", lambda name=name: serves(box, name), WAIT_S)
        assert box.stop() == []


def test_a_device_serves_and_adapts_without_the_fleet(package: Path, short: Path) -> None:
    with stopping(Box(short / "box")) as box:
        good, _bad = prepare(box, package)
        demo = Demo(box, cache=short / "cache")
        demo.enrol()
        box.fleet("release", "publish", good)
        first = create(box, GOOD)
        until("the rollout's end", lambda: state(box, first) == "succeeded", WAIT_S)
        write_samples(box.root / "data")

        def moment(name: str) -> None:
            if name == "heating":
                box.kill("broker")

        demo.moment = moment
        demo.heat()  # insists on a switch, the switch back and no failed request
        box.start("broker")
        why = ("why", HEATED, "--kind", "switch")
        until("the reasons arrive later", lambda: len(box.fleet_json(*why)) > 1, WAIT_S)


def prepare(box: Box, package: Path) -> tuple[Path, Path]:
    """Sign the package, and a spoilt one, with this box's own key."""
    box.initialize()
    key = box.release_key
    good, bad = box.root / "good", box.root / "bad"
    shutil.copytree(package, good)
    (good / ENVELOPE_FILE).unlink()
    box.fleet("package", "sign", good, "--key", key)
    spoil(good, bad, BAD)
    box.fleet("package", "sign", bad, "--key", key)
    assert (good / MANIFEST_FILE).is_file()
    return good, bad


def create(box: Box, version: str, *, soak: str = "1s") -> str:
    # A device on a busy machine is slow, which must not count as failed.
    order = rollout(version, deadline=f"{WAIT_S:.0f}s", soak=soak)
    return str(box.fleet_json(*order)["id"])


def kill_midway(box: Box, victim: str, rollout_id: str) -> None:
    """Kill when the first device has its order, and start again later."""
    until("the first order", lambda: bool(busy(box, rollout_id)), WAIT_S)
    name = busy(box, rollout_id)[0] if victim == "agent" else victim
    box.kill(name)
    time.sleep(DEAD_S)
    box.start(name)


def busy(box: Box, rollout_id: str) -> list[str]:
    active = {"assigned", "succeeded", "failed"}
    return [str(d["device"]) for d in deployments(box, rollout_id) if d["state"] in active]


def deployments(box: Box, rollout_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = box.api(f"/v1/rollouts/{rollout_id}")["deployments"]
    return found


def state(box: Box, rollout_id: str) -> str:
    return str(box.api(f"/v1/rollouts/{rollout_id}")["state"])


def versions(box: Box) -> set[str]:
    return {str(device["release"]) for device in box.api("/v1/devices")}


def serves(box: Box, device: str) -> bool:
    return box.status(device)["variant"] is not None
