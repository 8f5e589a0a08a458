"""What people see on a terminal of 80 columns, and what programs get through a pipe."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulators.packages import package, variant
from tests.simulators.patience import until
from tests.simulators.stack import (
    Done,
    Puppet,
    Stack,
    fleet,
    fleet_on_terminal,
    running_stack,
)
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli-terminal")]

ANSI = re.compile(r"\x1b\[[0-9;]*m")
DEVICE = "camera-at-the-northern-entrance-of-the-hall"


@pytest.fixture(scope="module")
def rollout(stack: Stack) -> str:
    """Give a device with long names a release, and let it tell what it measured."""
    key = SigningKey(stack.release_key.read_bytes())
    signed = package("1.0.0-candidate.20260131", [(variant("best"), b"model")], key=key)
    signed.write_to(stack.home.parent / "package")
    stack.ok("release", "publish", str(stack.home.parent / "package"))
    token = stack.ok("token", "create", "--label", "owner=department-of-entrances").out.strip()
    puppet = Puppet(stack, DEVICE, token, "succeeded")
    done = stack.fleet("rollout", "create", "digits:1.0.0-candidate.20260131", "--watch")
    assert done.code == 0, done.err
    puppet.send_telemetry()
    until(lambda: bool(stack.ok("why", DEVICE, "--json").json), "telemetry")
    stack.ok("policy", "set", "everyone", "--kind", "rules")
    # Each test compares two readings: nothing may change between them.
    until(lambda: "(accepted)" in stack.ok("device", "show", DEVICE).out, "the device's answer")
    puppet.transport.close()
    return done.out.splitlines()[0]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.fixture(params=[
    "device list", "device show DEVICE", "why DEVICE", "rollout list", "rollout show ROLLOUT",
    "release list", "release show RELEASE", "policy list", "policy show everyone",
    "telemetry query inference_latency_ms --by variant,device,release --stat count",
    "telemetry events DEVICE", "controller status",
])  # fmt: skip
def words(request: pytest.FixtureRequest, rollout: str) -> list[str]:
    """Return the words of a command that only reads."""
    names = {"DEVICE": DEVICE, "ROLLOUT": rollout, "RELEASE": "digits:1.0.0-candidate.20260131"}
    return [names.get(word, word) for word in request.param.split()]


def shown(done: Done) -> list[str]:
    assert done.code == 0, done.err
    return [ANSI.sub("", line) for line in done.out.replace("\r", "").splitlines()]


@pytest.mark.few(4)
def test_on_80_columns_no_word_is_broken(stack: Stack, words: list[str]) -> None:
    lines = shown(fleet_on_terminal(*words, "--home", str(stack.home), columns=80))
    whole = fleet(*words, "--home", str(stack.home)).out
    known = set(whole.split())
    for line in lines:
        assert len(line) <= 80 or len(line.split()[-1]) > 40, line
        for word in line.split():
            is_start = word.endswith("\u2026") and any(k.startswith(word[:-1]) for k in known)
            assert word in known or is_start or re.fullmatch(r"\d+[smhd]", word), (word, line)


def test_through_a_pipe_everything_is_whole(stack: Stack, words: list[str]) -> None:
    done = fleet(*words, "--home", str(stack.home))
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert "\u2026" not in done.out
    assert "''" not in done.out
    if words[1:2] == ["list"]:
        assert len(done.out.splitlines()) == 2, "a heading and one row"


def test_no_selector_is_shown_as_all_devices(stack: Stack, rollout: str) -> None:
    where = ("--home", str(stack.home))
    assert "all devices" in fleet("rollout", "list", *where).out
    shown = fleet("rollout", "show", rollout, *where).out.splitlines()
    assert ["selector", "all", "devices"] in [line.split() for line in shown]
    assert "all devices" in fleet("policy", "list", *where).out
    assert fleet("policy", "list", "--json", *where).json[0]["selector"] == ""


def test_columns_without_a_place_are_named(stack: Stack, rollout: str) -> None:
    done = fleet_on_terminal("device", "list", "--home", str(stack.home), columns=80)
    assert re.fullmatch(
        r"\([A-Z, ]+: not shown; a wider terminal shows all columns\)\n",
        done.err.replace("\n    ", " "),
    ), done.err


def test_a_command_that_reads_imports_little(stack: Stack) -> None:
    code = (
        "import sys; from controller.cli import main;"
        "code = main(sys.argv[1:]);"
        "heavy = {'pydantic', 'httpx', 'sqlalchemy', 'fastapi', 'numpy', 'rich', 'paho', 'nacl'};"
        "print(code, sorted((heavy | {'packager'}) & set(sys.modules)))"
    )
    done = subprocess.check_output(
        [sys.executable, "-c", code, "device", "list", "--home", str(stack.home)], text=True
    )
    assert done.endswith("0 []\n")
