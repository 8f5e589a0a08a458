"""Packages that reach a device as files: the agent as a process, with and without a controller."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.app.control import SOCKET_FILE, ask
from agent.errors import ControlError
from tests.simulators.agent_process import (
    DEVICE,
    FIRST,
    POLICY,
    At,
    Controller,
    Device,
    null_package,
)
from tests.simulators.archives import file_of
from tests.simulators.broker import RunningBroker
from tests.simulators.packages import STRANGER_KEY, SignedPackage, desired
from tests.simulators.patience import PATIENCE_S, until
from wire.delivery import Chunk

pytestmark = pytest.mark.broker

SECOND = null_package("2.0.0")


def stick(directory: Path, made: SignedPackage, assigned: bytes | None = None) -> Path:
    """Write a package file as `fleet package export` does."""
    path = directory / f"{made.index.name}-{made.index.version}.tar"
    path.write_bytes(file_of(made, desired=assigned))
    return path


def serves(device: Device) -> str | None:
    """Return the release that a device serves; None as long as it does not answer."""
    try:
        return None if device.ask("status")["variant"] is None else device.infer()[0]["release"]
    except ControlError:
        return None


def fetched(controller: Controller, made: SignedPackage) -> set[str]:
    """Return the digests of a package's blobs that were sent over MQTT and are of no other."""
    mine = {entry.sha256 for entry in made.index.files} | {made.ref.envelope_sha256}
    others = {entry.sha256 for entry in FIRST.index.files}
    return {sha256 for sha256, _ in controller.chunks.sent} & (mine - others)


def test_a_package_from_a_file_answers_like_a_fetched_one_and_nothing_is_fetched(
    serving: Device, controller: Controller, tmp_path: Path
) -> None:
    _, by_mqtt = serving.infer()
    done = serving.command("install", str(stick(tmp_path, SECOND)))
    assert done.returncode == 0, done.stderr
    assert "stored digits:2.0.0 (best, small)" in done.stdout
    assert "has not ordered it" in done.stdout
    assert serving.infer()[0]["release"] == "digits:1.0.0"
    controller.desire(2, SECOND)
    assert controller.outcome(2).outcome == "succeeded"
    parameters, by_hand = serving.infer()
    assert (parameters["release"], parameters["variant"]) == ("digits:2.0.0", "best")
    again = serving.command("install", str(stick(tmp_path, SECOND)))
    assert "this release runs already: there is nothing to install" in again.stdout
    assert "goes on" not in again.stdout
    assert np.array_equal(by_hand, by_mqtt)
    assert fetched(controller, SECOND) == set()


def test_an_install_that_waits_for_a_slow_link_goes_on_at_once(
    serving: Device, controller: Controller, tmp_path: Path
) -> None:
    lost = {entry.sha256 for entry in SECOND.index.files} | {SECOND.ref.envelope_sha256}

    def lose(chunk: Chunk) -> Chunk | None:
        return None if chunk.sha256 in lost else chunk

    controller.chunks.tamper = lose
    controller.desire(2, SECOND)
    until(lambda: serving.ask("status")["phase"] == "preflight", "the install")
    done = serving.command("install", str(stick(tmp_path, SECOND)))
    assert done.returncode == 0, done.stderr
    assert "it is the desired release" in done.stdout
    assert controller.outcome(2).outcome == "succeeded"
    assert serving.infer()[0]["release"] == "digits:2.0.0"
    assert fetched(controller, SECOND) == set()


def test_an_install_that_waits_for_a_lost_connection_goes_on_without_one(
    serving: Device, controller: Controller, anonymous_broker: RunningBroker, tmp_path: Path
) -> None:
    controller.chunks.tamper = lambda _chunk: None
    controller.desire(2, SECOND)
    until(lambda: serving.ask("status")["phase"] == "preflight", "the install")
    anonymous_broker.kill()
    until(lambda: not serving.ask("status")["connected"], "the loss")
    until(lambda: serving.ask("status")["outage"], "the reason")
    assert serving.command("install", str(stick(tmp_path, SECOND))).returncode == 0
    until(lambda: serves(serving) == "digits:2.0.0", "the release")
    assert not serving.ask("status")["connected"]
    anonymous_broker.start()


def test_a_desired_state_in_the_file_needs_no_network(tmp_path: Path) -> None:
    device = Device(tmp_path, At(1))
    device.start()
    try:
        until((device.config.state_dir / SOCKET_FILE).exists, "the agent")
        _, assigned = desired(5, FIRST, policy=POLICY)
        done = device.command("install", str(stick(tmp_path, FIRST, assigned)))
        assert done.returncode == 0, done.stderr
        assert "took revision 5 of the desired state" in done.stdout
        until(lambda: device.ask("status")["variant"] == "best", "the variant")
        assert device.infer()[0]["release"] == "digits:1.0.0"
        until(lambda: device.ask("status")["last_report"], "the outcome")
        # An older one does not bring an older release back; its package may be of use.
        _, older = desired(4, SECOND, policy=POLICY)
        done = device.command("install", str(stick(tmp_path, SECOND, older)), "--json")
        assert done.returncode == 0, done.stderr
        assert '"not_taken": "revision 4 is older than the accepted 5"' in done.stdout
        device.end(signal.SIGKILL)
        device.start()
        until(lambda: serves(device) == "digits:1.0.0", "the same release")
        assert device.ask("status")["revision"] == 5
    finally:
        device.end(signal.SIGKILL)


@pytest.mark.parametrize("how", ["stranger", "other device", "other package"])
def test_a_desired_state_that_does_not_belong_is_refused_with_its_package(
    serving: Device, tmp_path: Path, how: str
) -> None:
    _, assigned = {
        "stranger": lambda: desired(9, SECOND, key=STRANGER_KEY),
        "other device": lambda: desired(9, SECOND, device="dev-2"),
        "other package": lambda: desired(9, FIRST),
    }[how]()
    done = serving.command("install", str(stick(tmp_path, SECOND, assigned)))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert serving.ask("status")["revision"] == 1
    assert not (serving.config.state_dir / "incoming" / SECOND.digest).exists()


def test_a_kill_at_any_part_of_the_file_leaves_the_device_serving(
    serving: Device, controller: Controller, tmp_path: Path
) -> None:
    path = stick(tmp_path, SECOND)
    content = path.read_bytes()
    asked = 0

    def hand_over(kill_at: int | None) -> Any:
        nonlocal asked
        asked = 0

        def part(offset: int, length: int) -> bytes:
            nonlocal asked
            asked += 1
            if asked == kill_at:
                serving.end(signal.SIGKILL)
            return content[offset : offset + length]

        socket = serving.config.state_dir / SOCKET_FILE
        return ask(socket, "install", {"size_bytes": len(content)}, part=part)

    files = len(SECOND.index.files)
    for kill_at in (1, 4, files + 6, files + 7):
        with pytest.raises(ControlError):
            hand_over(kill_at)
        serving.start()
        until(lambda: serves(serving) == "digits:1.0.0", "the old release")
    assert hand_over(None)["release"] == "digits:2.0.0"
    controller.desire(2, SECOND)
    assert controller.outcome(2).outcome == "succeeded"
    assert fetched(controller, SECOND) == set()


def test_what_is_no_package_gives_one_line_and_status_2(serving: Device, tmp_path: Path) -> None:
    pipe, link, cut = tmp_path / "pipe", tmp_path / "link", tmp_path / "cut"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    cut.write_bytes(file_of(SECOND)[:-2000])
    (tmp_path / "noise").write_bytes(os.urandom(5000))
    (tmp_path / "empty").touch()
    forged = null_package("3.0.0")
    bad = file_of(forged).replace(forged.envelope[-40:], bytes(40))
    (tmp_path / "forged").write_bytes(bad)
    for name in ("pipe", "link", "cut", "noise", "empty", "forged", "none", ".", "/dev/zero"):
        done = serving.command("install", str(tmp_path / name))
        assert done.returncode == 2, name
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "Traceback" not in done.stderr
    state = serving.config.state_dir
    assert list((state / "incoming").iterdir()) == list((state / "parts").iterdir()) == []
    assert serving.infer()[0]["release"] == "digits:1.0.0"


def test_a_stick_that_is_pulled_out_gives_one_line_and_the_next_time_goes_on(
    serving: Device, tmp_path: Path
) -> None:
    path = stick(tmp_path, SECOND)
    content = path.read_bytes()

    def part(offset: int, length: int) -> bytes:
        if offset > len(content) // 2:
            raise ControlError(f"cannot read {path}: input/output error")
        return content[offset : offset + length]

    socket = serving.config.state_dir / SOCKET_FILE
    with pytest.raises(ControlError, match="input/output error"):
        ask(socket, "install", {"size_bytes": len(content)}, part=part)
    assert serving.command("install", str(path)).returncode == 0


def test_a_client_that_says_nothing_more_keeps_nobody_else_out(
    serving: Device, tmp_path: Path
) -> None:
    path = stick(tmp_path, SECOND)
    let_go, waits = threading.Event(), threading.Event()

    def part(_offset: int, _length: int) -> bytes:
        waits.set()
        assert let_go.wait(PATIENCE_S)
        raise ControlError("given up")

    def hang() -> None:
        with pytest.raises(ControlError, match="given up"):
            ask(serving.config.state_dir / SOCKET_FILE, "install", {"size_bytes": 9999}, part=part)

    hanging = threading.Thread(target=hang)
    hanging.start()
    assert waits.wait(PATIENCE_S)
    assert serving.infer()[0]["release"] == "digits:1.0.0"
    assert serving.command("install", str(path)).returncode == 2, "one at a time"
    until(lambda: serving.command("install", str(path)).returncode == 0, "its turn", step_s=0.5)
    let_go.set()
    hanging.join(PATIENCE_S)


@pytest.mark.parametrize("same", [False, True])
def test_a_newer_desired_state_does_not_wait_for_another_package_file(
    serving: Device, controller: Controller, same: bool
) -> None:
    wanted = SECOND if same else null_package("3.0.0")
    content, log = file_of(SECOND), serving.directory / "log"
    reads = itertools.count()

    def part(offset: int, length: int) -> bytes:
        if next(reads) == 2 * len(SECOND.index.files):
            controller.desire(2, wanted)
            until(lambda: '"revision": 2' in log.read_text(), "the desired state")
        return content[offset : offset + length]

    def hand_over() -> Any:
        socket = serving.config.state_dir / SOCKET_FILE
        return ask(socket, "install", {"size_bytes": len(content)}, part=part)

    if same:
        assert hand_over()["is_target"] is True
    else:
        with pytest.raises(ControlError, match="revision 2 of model digits has come"):
            hand_over()
    assert controller.outcome(2).outcome == "succeeded"
    assert serving.infer()[0]["release"] == f"digits:{wanted.index.version}"


def test_wrong_arguments_are_refused(serving: Device) -> None:
    for wrong in ({}, {"size_bytes": "9"}, {"size_bytes": -1}, {"size_bytes": True}):
        with pytest.raises(ControlError, match="size_bytes is not a number"):
            serving.ask("install", **wrong)
    assert serving.ask("status")["device"] == DEVICE
