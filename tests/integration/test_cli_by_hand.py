"""`fleet package` against a real controller: files, registries, and a device without a network."""

from __future__ import annotations

import dataclasses
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.app.control import SOCKET_FILE
from tests.simulators.agent_process import DEVICE, At, Device, null_package
from tests.simulators.packages import TRUST, SignedPackage
from tests.simulators.patience import until
from tests.simulators.registry import real_registry
from tests.simulators.stack import Puppet, Stack, fleet_here, running_stack
from wire.codec import sha256_hex, to_json
from wire.package.index import PAYLOAD_TYPE
from wire.trust.envelope import SigningKey, seal

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli")]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.fixture(scope="module")
def made(stack: Stack) -> SignedPackage:
    """Return a package that is published, and lies beside the fleet's directory."""
    key = SigningKey(stack.release_key.read_bytes())
    unsigned = null_package("1.0.0")
    envelope = seal(unsigned.index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=[key])
    made = dataclasses.replace(unsigned, envelope=envelope)
    made.write_to(stack.home.parent / "package")
    stack.ok("release", "publish", str(stack.home.parent / "package"))
    return made


@pytest.fixture(scope="module")
def away(stack: Stack, made: SignedPackage) -> Iterator[Puppet]:
    """Return an enrolled device that is away and got its order when a rollout ended without it."""
    token = stack.ok("token", "create", "--uses", "2").out.strip()
    puppets = [Puppet(stack, name, token, "succeeded") for name in (DEVICE, "cam-9")]

    def online() -> list[str]:
        devices = stack.ok("device", "list", "--json").json
        return [device["id"] for device in devices if device["online"]]

    until(lambda: len(online()) == 2, "their hellos")
    puppets[0].leave()
    until(lambda: online() == ["cam-9"], "its absence")
    done = stack.fleet(
        "rollout", "create", "digits:1.0.0", "--soak", "1s", "--offline-limit", "1s", "--watch"
    )
    assert done.code == 0, done.err
    yield puppets[0]
    for puppet in puppets:
        puppet.transport.close()


def test_a_release_and_its_directory_give_the_same_file(
    stack: Stack, made: SignedPackage, tmp_path: Path
) -> None:
    package = stack.home.parent / "package"
    told = stack.ok("package", "export", "digits:1.0.0", "--to", str(tmp_path / "a"), "--json").json
    stack.ok("package", "export", made.digest, "--to", str(tmp_path / "b"))
    shown = stack.ok("package", "export", str(package), "--to", str(tmp_path / "c")).out
    contents = [(tmp_path / name).read_bytes() for name in "abc"]
    assert contents[0] == contents[1] == contents[2]
    assert (told["release"], told["sha256"]) == ("digits:1.0.0", sha256_hex(contents[0]))
    assert told["size_bytes"] == len(contents[0])
    assert told["sha256"] in shown


def test_an_imported_package_can_be_published(
    stack: Stack, made: SignedPackage, tmp_path: Path
) -> None:
    stack.ok("package", "export", "digits:1.0.0", "--to", str(tmp_path / "file"))
    trust, back = str(stack.home / "trust.json"), str(tmp_path / "back")
    done = stack.ok("package", "import", str(tmp_path / "file"), "-o", back, "--trust", trust)
    assert done.out == f"digits:1.0.0 {made.digest} verified\n"
    assert made.digest in stack.ok("release", "publish", back).out


def test_faults_are_one_line(stack: Stack, made: SignedPackage, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"noise" * 1000)
    to, trust = str(tmp_path / "file"), str(stack.home / "trust.json")
    for arguments, fact in (
        (("export", "none:1", "--to", to), "none:1"),
        (("export", "./none", "--to", to), "is neither the directory of a package nor a release"),
        (("export", "digits:1.0.0", "--to", str(tmp_path / "no/file")), "cannot be written"),
        (("export", "digits:1.0.0", "--to", str(tmp_path)), "exists already"),
        (("export", "digits:1.0.0", "--to", to, "--profile", "rpi4"), "no variant of digits:1.0.0"),
        (
            ("export", "digits:1.0.0", "--to", to, "--device", "nobody"),
            "must enrol over a network once",
        ),
        (("import", str(tmp_path / "noise"), "-o", to, "--trust", trust), "fleet package export"),
    ):
        done = stack.fleet("package", *arguments)
        assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
        assert fact in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["noise"]


def test_a_device_without_a_network_runs_what_was_rolled_out_to_it(
    stack: Stack, away: Puppet, tmp_path: Path
) -> None:
    assigned = str(tmp_path / "assigned.tar")
    stack.ok("package", "export", "digits:1.0.0", "--to", assigned, "--device", DEVICE)
    device = Device(tmp_path, At(1))
    (tmp_path / "trust.json").write_bytes((stack.home / "trust.json").read_bytes())
    device.start()
    try:
        until((device.config.state_dir / SOCKET_FILE).exists, "the agent")
        done = device.command("install", assigned)
        assert done.returncode == 0, done.stderr
        assert "took revision" in done.stdout
        until(lambda: device.ask("status")["variant"] == "best", "the variant")
        assert device.infer()[0]["release"] == "digits:1.0.0"
    finally:
        device.end(signal.SIGKILL)


def test_a_release_that_was_not_rolled_out_to_the_device_is_not_assigned(
    stack: Stack, away: Puppet, tmp_path: Path
) -> None:
    key = SigningKey(stack.release_key.read_bytes())
    other = null_package("2.0.0")
    envelope = seal(other.index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=[key])
    dataclasses.replace(other, envelope=envelope).write_to(tmp_path / "other")
    to = str(tmp_path / "file")
    done = stack.fleet("package", "export", str(tmp_path / "other"), "--device", DEVICE, "--to", to)
    assert done.code == 2
    assert f"digits:2.0.0 is not what device {DEVICE} should run" in done.err
    assert "fleet rollout create digits:2.0.0" in done.err


def test_a_release_is_published_from_a_registry_and_leaves_nothing_behind(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SigningKey(stack.release_key.read_bytes())
    unsigned = null_package("3.0.0")
    envelope = seal(unsigned.index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=[key])
    made = dataclasses.replace(unsigned, envelope=envelope)
    made.write_to(tmp_path / "package")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "no-login.json"))
    clear = "--registry-clear-text"
    with real_registry(tmp_path) as host:
        place = f"oci://{host}/team/digits"
        stack.ok("package", "push", str(tmp_path / "package"), place, clear)
        assert made.digest in stack.ok("release", "publish", f"{place}:3.0.0", clear).out
        # And on to another repository, from the controller.
        told = stack.ok("package", "push", "digits:3.0.0", f"oci://{host}/prod/digits", clear)
        assert f"oci://{host}/prod/digits:3.0.0@sha256:" in told.out
        stranger = str(tmp_path / "stranger.json")
        Path(stranger).write_bytes(to_json(TRUST))
        refused = stack.fleet("release", "publish", f"{place}:3.0.0", clear, "--trust", stranger)
        assert (refused.code, "0 of 1 needed signatures" in refused.err) == (2, True)
        nobody = fleet_here("release", "publish", f"{place}:3.0.0", clear)
        assert (nobody.code, "add --trust FILE" in nobody.err) == (2, True)
    assert list((tmp_path / "temporary").iterdir()) == []
