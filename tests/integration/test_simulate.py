"""`fleet simulate`: devices of a seed over a real broker, with faults that were asked for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.simulators.packages import PROFILE, package, variant
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import ROOT, Stack, environment, running_stack
from wire.profile import profile_to_toml
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("simulate")]
DEVICES = 20
FAULTS = {"no_space": "15%", "crash_after_install": "15%"}


@pytest.fixture
def stack() -> Iterator[Stack]:
    """A fleet with a release."""
    with running_stack() as running:
        key = SigningKey(running.release_key.read_bytes())
        signed = package("1", [(variant("best"), b"model" * 50_000)], key=key, chunk_bytes=65_536)
        signed.write_to(running.home.parent / "1")
        running.ok("release", "publish", str(running.home.parent / "1"))
        (running.home.parent / "board.toml").write_text(profile_to_toml(PROFILE))
        yield running


def begun(stack: Stack, name: str) -> subprocess.Popen[str]:
    faults = [word for fault in FAULTS.items() for word in ("--fault", "=".join(fault))]
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "controller.cli", "simulate", "--home", str(stack.home)),
            *("--devices", str(DEVICES), "--seed", "7", "--speed", "100", "--telemetry", "2s"),
            *("--profile", str(stack.home.parent / "board.toml"), "--name", name, "--json"),
            *faults,
        ],
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def failed(stack: Stack, rollout: str, name: str) -> dict[str, str]:
    """Return the devices of a simulation that failed, by their number, and why."""
    shown = stack.ok("rollout", "show", rollout, "--json").json
    return {
        part["device"].removeprefix(name): part["error_code"]
        for part in shown["deployments"]
        if part["state"] == "failed" and part["device"].startswith(name)
    }


def test_devices_of_one_seed_take_a_staged_rollout_and_meet_the_same_faults(stack: Stack) -> None:
    with ExitStack() as ending:
        playing = {}
        for name in ("one", "two"):
            playing[name] = ending.enter_context(begun(stack, name))
            ending.callback(playing[name].kill)
        until(lambda: len(online(stack)) == 2 * DEVICES, "devices online")
        rollout = stack.ok(
            "rollout", "create", "digits:1", "--selector", "simulated=true", "--stage", "20%",
            "--stage", "100%", "--max-failures", "40", "--json",
        ).json["id"]  # fmt: skip
        until(
            lambda: stack.ok("rollout", "show", rollout, "--json").json["finished_at_s"], "an end"
        )
        one, two = (failed(stack, rollout, name) for name in playing)
        assert one == two
        assert set(one.values()) == {"agent.storage.full", "agent.confirm"}
        until(lambda: has_measured(stack), "telemetry of the release")

        for process in playing.values():
            process.send_signal(signal.SIGINT)
        for process in playing.values():
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
            tally = json.loads(out)
            assert (tally["enrolled"], tally["online"]) == (DEVICES, 0)
            assert tally["installs_failed"] == len(one)
            assert tally["installs_done"] == DEVICES - len(one)
            assert tally["batches_stored"] > 0


def online(stack: Stack) -> list[Any]:
    shown = stack.ok("device", "list", "--json", "--selector", "simulated=true").json
    return [device for device in shown if device["online"]]


def has_measured(stack: Stack) -> bool:
    return (
        "digits:1"
        in stack.ok("telemetry", "query", "inference_latency_ms", "--by", "release", "--json").out
    )
