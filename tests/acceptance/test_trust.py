"""A real fleet whose keys are changed, stolen and lost, by the commands that people use."""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import ControlError
from controller.app.home import offline_directory
from packager.package.keys import generate_key, load_key
from tests.simulators.agent_process import DEVICE, null_package
from tests.simulators.packages import SignedPackage
from tests.simulators.patience import until
from tests.simulators.stack import Stack, fleet_here, running_stack
from tests.simulators.stack_devices import StackDevice, publish
from wire.clock import SystemClock

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli"), pytest.mark.timeout(1200)]


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack() as made:
        yield made


@pytest.fixture
def device(stack: Stack) -> Iterator[StackDevice]:
    made = StackDevice(stack, DEVICE, stack.ok("token", "create", "--json").json["token"])
    try:
        made.start()
        made.until_online()
        yield made
    finally:
        if made.process is not None:
            made.end(signal.SIGKILL)


def release(stack: Stack, version: str) -> SignedPackage:
    return null_package(version, key=load_key(stack.release_key))


def written(stack: Stack, version: str) -> Path:
    folder = stack.home.parent / f"digits-{version}"
    release(stack, version).write_to(folder)
    return folder


def roll_out(stack: Stack, device: StackDevice, version: str) -> None:
    stack.ok("rollout", "create", f"digits:{version}", "--watch")
    until(lambda: device.shown.get("release") == f"digits:{version}", "the release")


def root_of(device: StackDevice) -> int:
    try:
        return int(device.ask("status")["trust"]["versions"]["root"])
    except ControlError:
        return -1


def keyid(stack: Stack, role: str) -> str:
    state = stack.ok("key", "status", "--json").json
    return str(next(each["keys"][0] for each in state["roles"] if each["role"] == role))


def test_keys_change_while_the_fleet_goes_on(stack: Stack, device: StackDevice) -> None:
    publish(stack, release(stack, "1.0.0"))
    roll_out(stack, device, "1.0.0")
    offline = offline_directory(stack.home)

    # Who lists releases: the new key beside the old one, then the old one goes.
    old = keyid(stack, "releases")
    new = stack.home.parent / "release-2.key"
    generate_key(new)
    stack.ok("key", "rotate", "releases", "--to", str(new))
    refused = stack.fleet(
        "key", "revoke", "releases", old[:12], "--key", str(offline / "targets.key")
    )
    assert refused.code == 2
    assert "releases has 0 of 1 signatures" in refused.err
    stack.ok(
        "key", "revoke", "releases", old[:12],
        "--key", str(offline / "targets.key"), "--key", str(new),
    )  # fmt: skip
    folder = written(stack, "2.0.0")
    stolen = stack.fleet("release", "publish", str(folder), "--key", str(offline / "release.key"))
    assert (stolen.code, "no key at hand may sign the list releases" in stolen.err) == (2, True)
    stack.ok("release", "publish", str(folder), "--key", str(new))
    roll_out(stack, device, "2.0.0")

    # Who signs the timestamp: stolen, so at once.
    timestamp = stack.home / "keys" / "timestamp.key"
    generate_key(stack.home / "keys" / "timestamp-2.key")
    draft = stack.home.parent / "draft.json"
    done = stack.fleet(
        "key", "rotate", "timestamp", "--at-once",
        "--to", str(stack.home / "keys" / "timestamp-2.key"),
        "--key", str(offline / "root-1.key"), "--draft", str(draft),
    )  # fmt: skip
    assert (done.code, "root has 1 of 2 signatures" in done.out) == (0, True)
    assert stack.fleet("key", "submit", str(draft)).code == 2  # too early
    signed = fleet_here("key", "sign", str(draft), "--yes", "--key", str(offline / "root-3.key"))
    assert signed.code == 0, signed.err
    stack.stop()
    (stack.home / "keys" / "timestamp-2.key").replace(timestamp)
    stack.start()
    stack.ok("key", "submit", str(draft))
    until(lambda: root_of(device) == 2, "the new root")

    # Who orders: the controller goes on with the new key, and the old one counts no more.
    director = stack.home / "keys" / "director-2.key"
    generate_key(director)
    before = keyid(stack, "director")
    stack.ok("key", "rotate", "director", "--to", str(director))
    stack.stop()
    director.replace(stack.home / "keys" / "director.key")
    stack.start()
    stack.ok("key", "revoke", "director", before)
    roll_out(stack, device, "1.0.0")
    said = "other keys sign desired states"
    until(lambda: said in stack.ok("why", DEVICE, "--kind", "trust").out, "the event", step_s=0.5)


def test_a_stolen_director_installs_nothing_that_is_not_listed(
    stack: Stack, device: StackDevice
) -> None:
    publish(stack, release(stack, "1.0.0"))
    publish(stack, release(stack, "2.0.0"))
    roll_out(stack, device, "1.0.0")
    stranger = stack.home.parent / "stranger.key"
    generate_key(stranger)
    wrong = stack.fleet("release", "revoke", "digits:2.0.0", "--key", str(stranger))
    assert (wrong.code, "nothing was revoked" in wrong.err) == (2, True)
    assert stack.ok("release", "show", "digits:2.0.0", "--json").json["state"] != "revoked"
    done = stack.ok("release", "revoke", "digits:2.0.0")
    assert "still on a trusted list" not in done.err
    assert stack.ok("key", "status", "--json").json["roles"][-1]["releases"] == 1
    again = stack.fleet("release", "revoke", "digits:2.0.0")
    assert again.code == 0


@pytest.mark.thorough
def test_a_device_that_hears_nothing_fresh_serves_and_takes_nothing_new(stack: Stack) -> None:
    publish(stack, release(stack, "1.0.0"))
    publish(stack, release(stack, "2.0.0"))
    token = stack.ok("token", "create", "--json").json["token"]
    now = dt.datetime.fromtimestamp(SystemClock().now_s(), dt.UTC)
    later = now + dt.timedelta(hours=6)
    window = f"{later:%H:%M}-{later + dt.timedelta(hours=1):%H:%M}"
    device = StackDevice(stack, DEVICE, token, f'[install]\nwindow = "{window}"\n')
    try:
        device.start()
        device.until_online()
        stack.ok("rollout", "create", "digits:1.0.0")
        until(lambda: window in device.ask("status")["waits_for"], "the wait for the window")
        device.command("override", "--for", "1h")
        until(lambda: device.shown.get("release") == "digits:1.0.0", "the first release")

        def ended() -> bool:
            rollouts = stack.ok("rollout", "list", "--json").json
            return all(rollout["state"] != "running" for rollout in rollouts)

        until(ended, "the end of the rollout")

        # A timestamp of two seconds, and then nobody who signs another.
        stack.stop()
        settings = stack.home / "controller.toml"
        settings.write_text(settings.read_text() + "\n[trust]\ntimestamp_s = 2.0\n")
        stack.start()
        device.until_online()
        stack.ok("rollout", "create", "digits:2.0.0")
        until(lambda: window in device.ask("status")["waits_for"], "the wait for the window")
        stack.stop()
        until(lambda: device.ask("status")["trust"]["stale"], "the end of the timestamp")
        device.command("override", "--for", "1h")
        until(lambda: "expired" in device.ask("status")["waits_for"], "the wait for a timestamp")
        assert device.infer()[0]["release"] == "digits:1.0.0"
        assert "nothing new is taken" in device.command("status").stdout

        settings.write_text(settings.read_text().replace("= 2.0", "= 3600.0"))
        stack.start()
        until(lambda: device.shown.get("release") == "digits:2.0.0", "the second release")
    finally:
        if device.process is not None:
            device.end(signal.SIGKILL)


def test_metadata_comes_by_file_to_a_device_without_a_network(
    stack: Stack, device: StackDevice, tmp_path: Path
) -> None:
    publish(stack, release(stack, "1.0.0"))
    roll_out(stack, device, "1.0.0")
    before = device.ask("status")["trust"]["versions"]
    to = tmp_path / "metadata.json"
    stack.ok("key", "sign", "targets")
    stack.ok("key", "export", str(to))
    until(lambda: device.ask("status")["trust"]["versions"] != before, "newer metadata")
    done = device.command("trust", str(to))
    assert (done.returncode, "nothing newer is trusted" in done.stdout) == (0, True)
    to.write_text("{}")
    refused = device.command("trust", str(to))
    assert refused.returncode == 2
