"""A release measured on a lent device that serves meanwhile, and a build that uses the figures."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controller.cli import main
from examples.digits.client import Client
from packager.package.directory import open_package
from tests.integration.builds import QUICK, build_command, digits, write_profile
from tests.simulators.packages import PROFILE
from tests.simulators.patience import until
from tests.simulators.stack import Stack, running_stack
from tests.simulators.stack_devices import StackDevice
from wire.measuring import FieldFile

pytestmark = pytest.mark.broker
ALLOW = "\n[measure]\nallow = true\n"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as made:
        yield made


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, its data, and a profile of devices with another processor than this machine's."""
    folder = digits(tmp_path_factory.mktemp("work"))
    path = write_profile(folder, "onnxruntime", name=PROFILE.name)
    path.write_text(f'processor = "A board with another processor"\n{path.read_text()}')
    return folder


def build(stack: Stack, work: Path, version: str, *more: str) -> Path:
    output = work / f"digits-{version}"
    profile = work / f"{PROFILE.name}.toml"
    key = ("--key", str(stack.release_key), "--name", "digits", "--version", version)
    assert main(build_command(work, profile, output, *QUICK, *key, *more)) == 0
    return output


@pytest.fixture(scope="module")
def device(stack: Stack, work: Path) -> Iterator[StackDevice]:
    """An agent that serves the first release."""
    token = stack.ok("token", "create", "--json").json["token"]
    agent = StackDevice(stack, "cam-1", token, ALLOW)
    profile = (work / f"{PROFILE.name}.toml").read_text()
    (agent.directory / "profile.toml").write_text(profile)
    agent.start()
    agent.until_online()
    stack.ok("release", "publish", str(build(stack, work, "1.0.0")))
    stack.ok("rollout", "create", "digits:1.0.0", "--watch")
    yield agent
    agent.end(signal.SIGKILL)


@pytest.mark.thorough
def test_a_lent_device_measures_while_it_serves_and_a_build_uses_the_figures(
    stack: Stack, work: Path, device: StackDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = build(stack, work, "2.0.0")
    figures = work / "figures.json"
    run = ("measure", "run", str(candidate), "--on", "id=cam-1", "--out", str(figures))
    refused = stack.fleet(*run)
    assert refused.code == 2
    assert "cam-1: it is not lent" in refused.err
    stack.ok("device", "lend", "cam-1")

    with np.load(work / "evaluation.npz") as arrays:
        images, labels = arrays["input"], arrays["label"]
    endpoint = str(device.ask("status")["endpoint"]).removeprefix("http://")
    client = Client(f"http://{endpoint}", "digits", images, labels).start()
    until(client.variants.total, "an answer")
    before = client.variants.total()
    found = stack.ok(*run, "--json").json
    served = client.variants.total() - before
    client.stop()
    assert served > 0
    assert client.failures == []

    (part,) = found["devices"]
    assert (part["state"], part["reason"]) == ("measured", "")
    first, _ = open_package(candidate)
    variants = part["figures"]["variants"]
    assert {v["name"] for v in variants} == {v.name for v in first.variants}
    for variant in variants:
        assert variant["performance"]["relative"]["reference"] == "onnxruntime"
        assert variant["performance"]["peak_memory_bytes"] > 2**20
    assert device.shown["release"] == "digits:1.0.0", "nothing was installed"
    assert found["id"] in stack.ok("measure", "list").out
    table = stack.ok("measure", "show", found["id"]).out
    heading = next(line for line in table.splitlines() if line.startswith("DEVICE"))
    assert heading.split()[-1] == "HEAT"
    assert "cam-1" in table
    assert "40 to 40 °C" in table
    assert PROFILE.name in stack.ok("measure", "figures").out

    told = {f.variant: f for f in msgspec.json.decode(figures.read_bytes(), type=FieldFile).field}
    assert set(told) == {v["name"] for v in variants}
    capsys.readouterr()
    again, _ = open_package(build(stack, work, "3.0.0", "--measurements", str(figures)))
    assert "were measured in the field, on 1 device" in capsys.readouterr().err
    for kept in again.variants:
        assert kept.info.field == {PROFILE.name: told[kept.name].figures}


@pytest.mark.thorough
def test_a_build_can_ask_devices_itself(
    stack: Stack, work: Path, device: StackDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.ok("device", "lend", "cam-1")
    capsys.readouterr()
    home = ("--home", str(stack.home))
    made, _ = open_package(build(stack, work, "4.0.0", "--measure-on", "id=cam-1", *home))
    told = capsys.readouterr().err
    assert "cam-1 measured" in told
    assert "were measured in the field" in told
    assert all(v.info.field and PROFILE.name in v.info.field for v in made.variants)
    assert device.shown["release"] == "digits:1.0.0"


def test_a_build_that_no_device_measures_says_so(
    stack: Stack, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = work / f"{PROFILE.name}.toml"
    published = stack.ok("release", "list").out
    plain = build_command(work, profile, work / "none", *QUICK, "--measure-on", "id=nobody")
    key = ("--key", str(stack.release_key), "--name", "digits", "--home", str(stack.home))
    for arguments, why in (
        (plain, "signed packages"),
        ([*plain, *key], "no device can be asked: the selector names none"),
        ([*plain[:-1], "id=(", *key], "selector"),
        ([*plain, *key, "--measure-timeout", "0s"], "--measure-timeout"),
        ([*plain, *key, "--measure-timeout", "999d"], "at most 1d"),
        ([*plain, *key, "--measurements", "f.json"], "leave one out"),
    ):
        capsys.readouterr()
        assert main(arguments) == 2
        assert why in capsys.readouterr().err
    assert not (work / "none").exists()
    assert stack.ok("release", "list").out == published, "nothing was built for nobody"


@pytest.mark.thorough
def test_nothing_is_published_and_nobody_asked_in_vain(
    stack: Stack, work: Path, device: StackDevice
) -> None:
    candidate = str(build(stack, work, "5.0.0"))
    run = ("measure", "run", candidate, "--on", "id=cam-1", "--out")
    before = stack.ok("measure", "list", "--json").json
    stack.ok("device", "lend", "cam-1")
    refused = stack.fleet(*run, str(work / "nowhere" / "figures.json"))
    assert refused.code == 2
    assert "cannot write" in refused.err
    stack.ok("device", "return", "cam-1")
    refused = stack.fleet(*run, str(work / "figures.json"))
    assert refused.code == 2
    assert "fleet device lend cam-1" in refused.err
    assert stack.ok("measure", "list", "--json").json == before
    assert "digits:5.0.0" not in stack.ok("release", "list").out


@pytest.mark.thorough
def test_waiting_can_be_given_up(stack: Stack, device: StackDevice) -> None:
    stack.ok("device", "lend", "cam-1")
    run = ("measure", "run", "digits:1.0.0", "--on", "id=cam-1", "--json")
    found = stack.ok(*run).json
    assert "1 measured" in stack.ok("measure", "cancel", found["id"]).out
    unknown = stack.fleet("measure", "cancel", "m1")
    assert unknown.code == 2
    assert "fleet measure list" in unknown.err


def test_a_device_that_is_given_back_is_not_asked(stack: Stack, device: StackDevice) -> None:
    stack.ok("device", "lend", "cam-1")
    stack.ok("device", "return", "cam-1")
    refused = stack.fleet("measure", "run", "digits:1.0.0", "--on", "id=cam-1")
    assert refused.code == 2
    assert "is not lent" in refused.err
