"""Hooks of a real agent: what its operator, its applications and the controller see of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.simulators.agent_process import FIRST, Controller, Device, null_package
from tests.simulators.hooks import HookDirectory
from tests.simulators.patience import until
from wire.installs import InstallReport
from wire.presence import Hello

pytestmark = pytest.mark.broker

SECOND, THIRD = null_package("2.0.0"), null_package("3.0.0")
NAME = "Switching_Enter_10_recorder"
LATER = "echo a recording is on; exit 21"


@pytest.fixture
def hooks(tmp_path: Path, device: Device) -> HookDirectory:
    """Make the hooks of the device; each that says later is asked again soon."""
    hooks = HookDirectory(tmp_path / "of-the-operator")
    with device.config_path.open("a") as config:
        config.write('[hooks]\ndirectory = "of-the-operator/hooks.d"\nretry_s = 0.3\n')
    return hooks


@pytest.fixture
def waiting(hooks: HookDirectory, serving: Device, controller: Controller) -> Device:
    """Return a device whose hook delays the switch to the second package."""
    hooks.add(NAME, answer=LATER)
    controller.desire(2, SECOND)
    until(lambda: serving.ask("status")["waits_for"], "a wait")
    return serving


def test_an_install_that_waits_is_seen_everywhere_and_the_device_serves(
    waiting: Device, controller: Controller, hooks: HookDirectory
) -> None:
    text = f"hook {NAME} says later: exit status 21: a recording is on"
    status = waiting.ask("status")
    assert (status["phase"], status["waits_for"]) == ("switching", text)
    assert f"waits for   {text}" in waiting.command("status").stdout
    told = controller.event("hook")
    assert told.data["hook"] == NAME
    assert (told.data["phase"], told.data["status"]) == ("switching", 21)
    assert told.reason == f"{NAME}: exit status 21: a recording is on; the install waits"
    until(
        lambda: [r for r in controller.all("report", InstallReport) if r.detail == text],
        "a report of the wait",
    )
    until(lambda: len(hooks.ran) > 3, "further questions")
    assert waiting.infer()[0]["release"] == "digits:1.0.0"
    assert "the install waits" in waiting.command("why").stdout
    ran = [line for line in waiting.log if line["action"] == "hook-ran"]
    assert ran[-1]["output"] == "a recording is on\n"
    hooks.answer(NAME, "")
    assert controller.outcome(2).active == SECOND.digest
    assert waiting.ask("status")["waits_for"] == ""


def test_the_operator_overrides_a_hook_that_delays(waiting: Device, controller: Controller) -> None:
    said = waiting.command("override", "--for", "30m")
    assert said.returncode == 0, said.stderr
    assert said.stdout == (
        f"the install goes on now; without the override: hook {NAME} says later: "
        "exit status 21: a recording is on\n"
    )
    assert controller.outcome(2).active == SECOND.digest
    ordered = controller.event("override")
    assert ordered.reason == "the operator overrides what would hold one install within 30m"
    controller.event("hook", lambda e: e.reason.endswith("the operator overrides it"))
    controller.desire(3, THIRD)
    until(lambda: waiting.ask("status")["waits_for"], "a wait of the next install")


def test_the_operator_overrides_a_veto_beforehand_and_takes_it_back(
    hooks: HookDirectory, serving: Device, controller: Controller
) -> None:
    hooks.add(NAME, answer="echo never; exit 1")
    controller.desire(2, SECOND)
    refused = controller.outcome(2)
    assert (refused.outcome, refused.error_code) == ("failed", "agent.hook")
    assert refused.detail.startswith(f"hook {NAME} says no: exit status 1: never; `fleet-agent ov")
    assert "(agent.hook)" in serving.command("status").stdout
    assert serving.infer()[0]["release"] == "digits:1.0.0"
    said = serving.command("override")
    assert said.stdout == "the next install within 1h goes on, whatever would hold it\n"
    assert "override    one install within" in serving.command("status").stdout
    assert (
        serving.command("override", "--clear").stdout
        == "hooks, window, battery and budgets count\n"
    )
    controller.desire(3, SECOND)
    assert controller.outcome(3).error_code == "agent.hook"
    assert json.loads(serving.command("override", "--json").stdout)["override_s"] > 3000
    controller.desire(4, SECOND)
    assert controller.outcome(4).outcome == "succeeded"


@pytest.mark.parametrize("length", ["0s", "2d"])
def test_an_override_has_a_reasonable_length(
    hooks: HookDirectory, serving: Device, length: str
) -> None:
    wrong = serving.command("override", "--for", length)
    assert wrong.returncode == 2
    assert wrong.stderr == ("fleet-agent: an override is for more than 0 s, and for 1d at most\n")


def test_without_hooks_there_is_nothing_to_override(serving: Device) -> None:
    wrong = serving.command("override")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith(
        "fleet-agent: this device has no hooks, and its installs may begin at "
    )


def test_a_newer_desired_state_ends_the_wait(waiting: Device, controller: Controller) -> None:
    controller.desire(3, FIRST)
    assert controller.outcome(3).active == FIRST.digest
    reports = controller.all("report", InstallReport)
    assert not [r for r in reports if r.revision == 2 and r.outcome != "running"]
    controller.event("install", lambda e: e.data["outcome"] == "abandoned")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_goes_on_waiting(
    waiting: Device, controller: Controller, hooks: HookDirectory, how: signal.Signals
) -> None:
    waiting.end(how)
    before = len(hooks.ran)
    waiting.start()
    until(lambda: len(hooks.ran) > before, "the same question again")
    assert waiting.infer()[0]["release"] == "digits:1.0.0"
    hooks.answer(NAME, "")
    assert controller.outcome(2).active == SECOND.digest


def test_a_stop_ends_a_hook_that_runs_and_the_next_start_runs_it_again(
    hooks: HookDirectory, serving: Device, controller: Controller, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    hooks.add(NAME, answer=f"trap '' TERM INT; echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 999")
    controller.desire(2, SECOND)
    until(pid.exists, "a hook that hangs")
    assert serving.infer()[0]["release"] == "digits:1.0.0"
    assert serving.end(signal.SIGTERM) == 0
    assert not psutil.pid_exists(int(pid.read_text()))
    hooks.answer(NAME, "")
    serving.start()
    assert controller.outcome(2).active == SECOND.digest
    assert hooks.ran == [NAME, NAME]


def test_a_hook_that_hangs_says_no_at_its_limit(
    hooks: HookDirectory, device: Device, controller: Controller
) -> None:
    with device.config_path.open("a") as config:
        config.write("timeout_s = 0.5\n")
    hooks.add("Probing_Leave_00", answer="echo it hangs; sleep 999")
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    controller.desire(1, FIRST)
    failed = controller.outcome(1)
    assert (failed.phase, failed.error_code, failed.active) == ("probing", "agent.hook", None)
    assert "says no: it did not end within 0.5 s: it hangs" in failed.detail


def test_hooks_that_must_not_run_are_told_at_the_start_and_stop_installs_but_not_serving(
    hooks: HookDirectory, serving: Device, controller: Controller
) -> None:
    hooks.add(NAME)
    (hooks.path / NAME).chmod(0o777)
    serving.end(signal.SIGTERM)
    serving.start()
    told = controller.event("hook", lambda e: e.data["code"] == "agent.hook.files")
    assert f"no hook runs because of {hooks.path}/{NAME}: its group or others may" in told.reason
    controller.desire(2, SECOND)
    failed = controller.outcome(2)
    assert (failed.phase, failed.error_code) == ("preflight", "agent.hook.files")
    assert serving.infer()[0]["release"] == "digits:1.0.0"
    assert hooks.ran == []
