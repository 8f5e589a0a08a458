"""The agent as a process, against a real broker: the test plays the controller."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from agent.errors import ControlError
from agent.serve.benches import CRASHES_TO_BENCH
from tests.simulators.agent_process import (
    DEVICE,
    FIRST,
    MODELS,
    TOKEN,
    Controller,
    Device,
    null_package,
    reference,
)
from tests.simulators.broker import RunningBroker
from tests.simulators.crowd import Crowd
from tests.simulators.packages import (
    STRANGER_KEY,
    variant,
)
from tests.simulators.patience import until
from tests.simulators.rig import INPUT
from wire.clock import SystemClock
from wire.installs import InstallReport, Refusal
from wire.package.processing import Postprocessing, Suppression
from wire.package.tensors import TensorSpec
from wire.presence import Hello, Presence

pytestmark = pytest.mark.broker

CLOCK = SystemClock()
MAX_RSS_BYTES = 40 * 1024 * 1024


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def test_it_greets_a_controller_that_lost_its_hello(device: Device, controller: Controller) -> None:
    device.start()
    first = until(lambda: controller.all("hello", Hello), "a hello")[0]
    controller.heard.clear()

    def greeted() -> list[Hello]:
        controller.desire(1, FIRST, boot_id="an earlier start")
        return controller.all("hello", Hello)

    again = until(greeted, "another hello", step_s=1.0)[0]
    assert again.boot_id == first.boot_id
    assert controller.outcome(1).outcome == "succeeded"
    controller.heard.clear()
    controller.desire(1, FIRST, boot_id=first.boot_id)
    until(lambda: controller.all("report", InstallReport), "the outcome again")
    assert controller.all("hello", Hello) == [], "it is known"


def test_it_greets_a_controller_that_comes_after_it(
    device: Device, anonymous_broker: RunningBroker
) -> None:
    earlier = Controller(anonymous_broker)
    device.start()
    until(lambda: earlier.all("hello", Hello), "a hello")
    device.end(signal.SIGTERM)
    earlier.transport.close()

    device.start()

    def is_connected() -> bool:
        with contextlib.suppress(ControlError):
            return bool(device.ask("status")["connected"])
        return False

    until(is_connected, "a connection without a controller")
    late = Controller(anonymous_broker)
    until(lambda: late.all("hello", Hello), "a hello for who has come late")
    late.heard.clear()
    late.desire(1, FIRST)
    assert late.outcome(1).outcome == "succeeded"
    late.transport.close()


def test_it_enrols_and_says_hello(device: Device, controller: Controller) -> None:
    device.start()
    hello = until(lambda: controller.all("hello", Hello), "a hello")[0]
    assert (hello.revision, hello.release, hello.profile.name) == (0, None, "bench")
    assert hello.runtimes is msgspec.UNSET, "it has all runtimes of its profile"
    request = controller.enrolments[0]
    assert (request.device, request.token) == (DEVICE, TOKEN)
    assert controller.all("presence", Presence)[-1].online
    log = (device.directory / "log").read_text()
    assert request.password not in log
    assert TOKEN not in log


def test_it_installs_a_package_and_answers(serving: Device, controller: Controller) -> None:
    outcome = controller.outcome(1)
    assert (outcome.active, outcome.variant) == (FIRST.digest, "best")
    parameters, answer = serving.infer()
    assert (parameters["variant"], parameters["device"]) == ("best", DEVICE)
    expected = reference(variant("best"), b'{"seed": 1}')["y"]
    assert np.allclose(answer, expected, rtol=1e-5)
    controller.event("install", lambda e: e.data["outcome"] == "succeeded")


def test_heat_changes_the_variant_and_back(serving: Device, controller: Controller) -> None:
    serving.set_temperature_c(84)
    hot = controller.event("switch", lambda e: e.data["to"] == "small")
    assert hot.data["from"] == "best"
    assert hot.data["inputs"]["headroom"] > 0.85
    assert "slower" in hot.data["verdicts"]["best"]
    assert serving.infer()[0]["variant"] == "small"
    # A lost sensor is not cool.
    (serving.sysfs / "class/thermal/thermal_zone0/temp").unlink()
    until(lambda: serving.ask("status")["health"]["temperature_c"] is None, "a loss")
    lost_s = serving.ask("status")["health"]["at_s"]
    until(lambda: serving.ask("status")["health"]["at_s"] > lost_s, "a later look")
    assert serving.infer()[0]["variant"] == "small"
    serving.set_temperature_c(50)
    until(lambda: serving.infer()[0]["variant"] == "best", "the best variant")
    # The device itself knows why.
    why = serving.command("why", "--since", "1h")
    assert why.returncode == 0, why.stderr
    assert "switch best -> small: hot: the cheapest variant" in why.stdout
    kinds = {event["kind"] for event in serving.ask("why", within_s=3600)}
    assert {"start", "install", "switch"} <= kinds


@pytest.mark.parametrize("kept", [1, 2], ids=["one-package", "two-packages"])
def test_a_flipped_byte_in_the_release_heals_by_itself(
    serving: Device, controller: Controller, kept: int
) -> None:
    wanted = FIRST
    if kept == 2:
        wanted = null_package("2.0.0")
        controller.desire(2, wanted)
        assert controller.outcome(2).outcome == "succeeded"
    serving.end(signal.SIGTERM)
    manifest = serving.config.state_dir / "packages" / wanted.digest / "manifest.json"
    content = bytearray(manifest.read_bytes())
    content[10] ^= 1
    manifest.write_bytes(content)
    serving.start()
    drift = controller.event("drift")
    assert drift.data["active"] == (FIRST.digest if kept == 2 else None)
    controller.event("install", lambda e: e.data["repair"] and e.data["outcome"] == "succeeded")
    assert serving.infer()[0]["release"] == f"digits:{kept}.0.0"


def crowd(device: Device) -> Crowd:
    """Return clients of a device that serves a null package."""
    port = int(device.ask("status")["endpoint"].rpartition(":")[2])
    expected = {name: reference(variant(name), content, INPUT) for name, content in MODELS.items()}
    return Crowd(port, {name: outputs["y"] for name, outputs in expected.items()})


def worker_of(device: Device) -> int:
    assert device.process is not None
    return until(lambda: children(device.process.pid if device.process else 0), "a worker")[0]


def crash(device: Device, asking: Crowd, times: int) -> None:
    """Kill the worker, and wait for answers, so many times."""
    for _ in range(times):
        os.kill(worker_of(device), signal.SIGKILL)
        asking.wait_for(5)


def test_a_variant_that_is_benched_loses_no_request(
    serving: Device, controller: Controller
) -> None:
    with crowd(serving) as asking:
        asking.wait_for(5)
        crash(serving, asking, CRASHES_TO_BENCH)
    assert asking.faults == []
    assert serving.infer()[0]["variant"] == "small"
    controller.event("worker", lambda e: "is benched" in e.reason)
    gap = controller.event("gap")
    assert "SIGKILL" in gap.reason


def test_a_device_whose_only_variant_crashes_says_so_and_serves_again_soon(
    serving: Device, controller: Controller
) -> None:
    only = null_package("2.0.0", names=("best",))
    controller.desire(2, only)
    assert controller.outcome(2).outcome == "succeeded"
    with crowd(serving) as asking:
        crash(serving, asking, CRASHES_TO_BENCH - 1)
        os.kill(worker_of(serving), signal.SIGKILL)
        until(lambda: asking.faults, "a refusal")
        hello = until(
            lambda: [h for h in controller.all("hello", Hello)[1:] if h.release is None],
            "a hello of a device that serves nothing",
        )[0]
        assert (hello.variant, hello.revision) == (None, 2)
        controller.desire(2, only)
        told = until(
            lambda: [r for r in controller.all("report", InstallReport) if r.outcome == "failed"],
            "a report of a device that serves nothing",
        )[0]
        assert (told.error_code, told.active) == ("agent.variant", None)
        answered = asking.answers.total()
        until(lambda: asking.answers.total() >= answered + 5, "answers again")
    assert any("no variant of the model can serve" in fault for fault in asking.faults)
    until(
        lambda: controller.all("hello", Hello)[-1].release == only.digest,
        "a hello of a device that serves again",
    )


def test_success_is_reported_only_by_what_answers_now(
    serving: Device, controller: Controller
) -> None:
    with crowd(serving) as asking:
        asking.wait_for(1)
        os.kill(worker_of(serving), signal.SIGSTOP)
        controller.desire(2, FIRST, rollout="again")
        assert controller.outcome(2).outcome == "succeeded"
        asking.wait_for(5)
    assert asking.faults == []


def test_a_worker_that_hangs_is_found_long_before_a_slow_one(
    serving: Device, controller: Controller
) -> None:
    with crowd(serving) as asking:
        asking.wait_for(5)
        os.kill(worker_of(serving), signal.SIGSTOP)
        asking.wait_for(5)
    assert asking.faults == []
    found = controller.event("worker")
    assert found.reason.startswith("the worker hung: it had a request and did nothing for ")


def test_a_pin_holds_the_variant(serving: Device) -> None:
    assert serving.command("pin", "small").stdout == "pinned to small, which serves\n"
    until(lambda: serving.infer()[0]["variant"] == "small", "the pinned variant")
    wrong = serving.command("pin", "huge")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "fleet-agent: there is no variant 'huge'; choose one of best, small\n"
    assert "pinned" in serving.command("variants").stdout
    assert serving.command("pin", "--clear").returncode == 0
    until(lambda: serving.infer()[0]["variant"] == "best", "the best variant")


def test_a_bad_package_fails_and_the_old_one_never_stops_answering(
    serving: Device, controller: Controller
) -> None:
    answers: list[str] = []
    done = threading.Event()

    def ask_on() -> None:
        while not done.is_set():
            answers.append(serving.infer()[0]["release"])

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        controller.desire(2, null_package("2.0.0", wrong=True))
        outcome = controller.outcome(2)
    finally:
        done.set()
        asking.join()
    assert (outcome.outcome, outcome.phase) == ("failed", "probing")
    assert (outcome.error_code, outcome.active) == ("agent.golden", FIRST.digest)
    assert set(answers) == {"digits:1.0.0"}
    controller.desire(3, FIRST)
    assert controller.outcome(3).outcome == "succeeded"


def test_a_package_whose_answers_cannot_be_processed_is_not_installed(
    serving: Device, controller: Controller
) -> None:
    boxes = TensorSpec(name="boxes", datatype="FP32", shape=(-1, 3, 4))
    scores = TensorSpec(name="scores", datatype="FP32", shape=(-1, 3, 2))
    for revision, layout in ((2, "classes_first"), (3, "classes_last")):
        how = Suppression(scores="scores", layout=layout)  # type: ignore[arg-type]
        release = null_package(
            f"{revision}.0.0",
            more_outputs=(boxes, scores),
            postprocessing={"boxes": Postprocessing(suppression=how)},
        )
        controller.desire(revision, release)
        outcome = controller.outcome(revision)
        if layout == "classes_last":
            assert outcome.outcome == "succeeded"
            continue
        assert (outcome.outcome, outcome.error_code) == ("failed", "agent.golden")
        assert outcome.active == FIRST.digest
        assert outcome.detail.startswith(
            "variant best fails its golden test: postprocessing of 'boxes': the output 'scores' of"
        )
        assert outcome.detail.endswith('use layout = "classes_last"')


def test_a_good_package_takes_over_without_a_failed_request(
    serving: Device, controller: Controller
) -> None:
    second = null_package("2.0.0")
    controller.desire(2, second)
    seen = set()

    def taken_over() -> bool:
        seen.add(serving.infer()[0]["release"])
        return "digits:2.0.0" in seen

    until(taken_over, "the second package")
    assert controller.outcome(2).active == second.digest
    assert seen <= {"digits:1.0.0", "digits:2.0.0"}


def test_forged_and_old_desired_states_are_refused_and_that_is_told(
    serving: Device, controller: Controller
) -> None:
    controller.desire(2, FIRST)
    assert controller.outcome(2).outcome == "succeeded"
    controller.desire(9, null_package("9.0.0"), key=STRANGER_KEY)
    controller.event("refused", lambda e: e.data.get("code") == "wire.signature")
    controller.desire(1, FIRST)
    controller.event("refused", lambda e: e.data.get("code") == "agent.refused.older")
    assert serving.ask("status")["revision"] == 2
    told = controller.all("refusal", Refusal)
    assert {refusal.error_code for refusal in told} == {"wire.signature", "agent.refused.older"}
    assert "older than the accepted 2" in serving.command("status").stdout


def test_a_killed_agent_serves_again_before_anybody_says_anything(
    serving: Device, controller: Controller
) -> None:
    workers = children(serving.process.pid) if serving.process else []
    assert workers
    serving.end(signal.SIGKILL)
    until(lambda: not any(psutil.pid_exists(pid) for pid in workers), "the end of all workers")
    until(
        lambda: [p for p in controller.all("presence", Presence) if not p.online], "the last will"
    )
    controller.heard.clear()
    serving.start()
    hello = until(lambda: controller.all("hello", Hello), "a second hello")[0]
    assert (hello.release, hello.variant, hello.revision) == (FIRST.digest, "best", 1)
    assert serving.infer()[0]["release"] == "digits:1.0.0"
    assert len(controller.enrolments) == 1


def test_an_install_that_was_killed_goes_on(serving: Device, controller: Controller) -> None:
    second = null_package("2.0.0")
    controller.chunks.tamper = lambda _chunk: None
    controller.desire(2, second)
    until(lambda: serving.ask("status")["phase"] == "preflight", "an install that waits")
    serving.end(signal.SIGKILL)
    controller.chunks.tamper = lambda chunk: chunk
    serving.start()
    assert controller.outcome(2).active == second.digest


def test_a_stop_ends_everything_within_five_seconds(serving: Device) -> None:
    workers = children(serving.process.pid) if serving.process else []
    began_s = CLOCK.monotonic_s()
    assert serving.end(signal.SIGTERM) == 0
    assert CLOCK.monotonic_s() - began_s < 5
    assert not any(psutil.pid_exists(pid) for pid in workers)
    assert serving.log[-1]["action"] == "stopped"


def test_a_restart_without_a_broker_serves(
    serving: Device, anonymous_broker: RunningBroker
) -> None:
    device = serving
    device.end(signal.SIGTERM)
    anonymous_broker.kill()
    device.start()
    until(lambda: [e for e in device.log if e["action"] == "ready"][1:], "being ready")
    assert device.infer()[0]["release"] == "digits:1.0.0"
    status = device.command("status", "--json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["connected"] is False
    anonymous_broker.start()
    until(
        lambda: json.loads(device.command("status", "--json").stdout)["connected"],
        "a connection after the broker came back",
    )


def test_the_status_of_a_device_without_a_model_is_no_success_in_either_form(
    device: Device, controller: Controller
) -> None:
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    for form in ((), ("--json",)):
        assert device.command("status", *form).returncode == 1


def test_a_second_agent_on_the_same_state_is_refused(serving: Device) -> None:
    second = serving.command("run")
    assert second.returncode == 2
    assert second.stderr.startswith("fleet-agent: another agent uses this state directory; ")


def test_the_supervisor_is_small(serving: Device) -> None:
    assert serving.process is not None
    assert psutil.Process(serving.process.pid).memory_info().rss <= MAX_RSS_BYTES
    maps = Path(f"/proc/{serving.process.pid}/maps").read_text()
    assert not any(name in maps for name in ("numpy", "onnxruntime", "openvino"))
