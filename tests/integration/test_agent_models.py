"""Several models on one device: an agent as a process, a real broker, form 2 of desired states."""

from __future__ import annotations

import json
import signal
import threading

import psutil
import pytest

from tests.simulators.agent_process import DEVICE, POLICY, Controller, Device, null_package
from tests.simulators.endpoint_client import Client
from tests.simulators.packages import DIRECTOR_KEY, SignedPackage
from tests.simulators.patience import PATIENCE_S, until
from wire.desired import (
    DESIRED_PAYLOAD_TYPE,
    NAMED_MODELS,
    WINDOWS,
    DesiredModels,
    ModelState,
    desired_to_json,
)
from wire.installs import InstallReport, Refusal
from wire.policy import PolicySpec
from wire.presence import Hello
from wire.topics import down
from wire.trust.envelope import seal

pytestmark = pytest.mark.broker

DIGITS = null_package("1.0.0")
SPEECH = null_package("4.0.0", name="speech")


def state(revision: int, package: SignedPackage, policy: PolicySpec = POLICY) -> ModelState:
    return ModelState(
        name=package.index.name, revision=revision, release=package.ref, rollout=f"r{revision}",
        policy=policy,
    )  # fmt: skip


def desire(controller: Controller, revision: int, *models: ModelState) -> None:
    wanted = DesiredModels(
        device=DEVICE, revision=revision, issued_at_s=1.0, models=models, has_sources=False
    )
    payload = desired_to_json(wanted, form=NAMED_MODELS)
    envelope = seal(payload, payload_type=DESIRED_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])
    assert controller.transport.publish(down(DEVICE, "desired"), envelope)


def outcome(controller: Controller, model: str, revision: int) -> InstallReport:
    def find() -> InstallReport | None:
        reports = controller.all("report", InstallReport)
        ended = [r for r in reports if (r.model, r.revision) == (model, revision)]
        return next((r for r in ended if r.outcome != "running"), None)

    return until(find, f"the outcome of {model} at revision {revision}")


def bring_both(device: Device, controller: Controller) -> None:
    """Start a device, and let it serve two models."""
    controller.chunks.add(*DIGITS.blobs, *SPEECH.blobs)
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    desire(controller, 1, state(1, DIGITS), state(1, SPEECH))
    for name in ("digits", "speech"):
        assert outcome(controller, name, 1).outcome == "succeeded"


@pytest.fixture
def both(device: Device, controller: Controller) -> Device:
    """Return a device that serves two models."""
    bring_both(device, controller)
    return device


def test_both_answer_under_their_names_and_versions(both: Device) -> None:
    client = Client(both)
    for package in (DIGITS, SPEECH):
        name, version = package.index.name, package.index.version
        for path in (name, f"{name}/versions/{version}"):
            status, answer = client.infer(path)
            assert (status, answer["model_name"], answer["model_version"]) == (200, name, version)
            assert answer["parameters"]["release"] == f"{name}:{version}"
        assert client.ask("GET", f"/v2/models/{name}/ready")[0] == 200
        assert client.ask("GET", f"/v2/models/{name}")[1]["versions"] == [version]
        stats = client.ask("GET", f"/v2/models/{name}/stats")[1]["model_stats"]
        assert [(s["name"], s["inference_stats"]["success"]["count"]) for s in stats] == [(name, 2)]
    index = client.ask("POST", "/v2/repository/index")[1]
    assert [(m["name"], m["version"], m["state"]) for m in index] == [
        ("digits", "1.0.0", "READY"),
        ("speech", "4.0.0", "READY"),
    ]
    every = client.ask("GET", "/v2/models/stats")[1]["model_stats"]
    assert [s["name"] for s in every] == ["digits", "speech"]
    status, answer = client.infer("digit")
    assert (status, "unknown model: 'digit'" in answer["error"]) == (404, True)
    assert client.infer("digits/versions/4.0.0")[0] == 404


def test_commands_take_the_name_of_a_model(both: Device) -> None:
    status = both.command("status")
    assert status.returncode == 0
    for line in ("model    digits", "model    speech", "models      2"):
        assert line in status.stdout, status.stdout
    one = json.loads(both.command("status", "--model", "speech", "--json").stdout)
    assert (one["model"], one["release"]) == ("speech", SPEECH.digest)
    names = {v["model"] for v in json.loads(both.command("variants", "--json").stdout)}
    assert names == {"digits", "speech"}
    unnamed = both.command("pin", "small")
    assert unnamed.returncode == 2
    assert "several models: digits, speech" in unnamed.stderr
    typo = both.command("pin", "--model", "speeck", "small")
    assert "no model 'speeck'" in typo.stderr
    assert "this device has: digits, speech" in typo.stderr
    assert both.command("pin", "--model", "speech", "small").returncode == 0
    client = Client(both)
    until(lambda: client.infer("speech")[1]["parameters"]["variant"] == "small", "the pin")
    assert client.infer("digits")[1]["parameters"]["variant"] == "best"
    why = both.command("why", "--model", "speech").stdout
    assert "speech:4.0.0" in why
    assert "digits:1.0.0" not in why


def test_a_bad_release_of_one_touches_no_request_of_the_other(
    both: Device, controller: Controller
) -> None:
    broken = null_package("2.0.0", wrong=True)
    controller.chunks.add(*broken.blobs)
    statuses: list[int] = []
    done = threading.Event()

    def ask() -> None:
        client = Client(both)
        while not done.is_set():
            statuses.append(client.infer("speech")[0])

    asking = threading.Thread(target=ask)
    asking.start()
    desire(controller, 2, state(2, broken), state(1, SPEECH))
    failed = outcome(controller, "digits", 2)
    done.set()
    asking.join(PATIENCE_S)
    assert (failed.outcome, failed.error_code) == ("failed", "agent.golden")
    assert failed.active == DIGITS.digest, "the release before serves"
    assert statuses
    assert set(statuses) == {200}
    told = [r.revision for r in controller.all("report", InstallReport) if r.model == "speech"]
    assert set(told) == {1}, "nothing was installed of it"


def test_a_model_that_is_not_named_any_more_is_removed(
    both: Device, controller: Controller
) -> None:
    desire(controller, 2, state(1, SPEECH))
    client = Client(both)
    until(lambda: client.infer("digits")[0] == 404, "its removal")
    assert client.infer("speech")[0] == 200
    assert client.ask("GET", "/v2/health/ready")[0] == 200
    packages = both.config.state_dir / "packages"
    until(lambda: {p.name for p in packages.iterdir()} == {SPEECH.digest}, "its packages' removal")
    controller.event("removed", lambda event: event.data["model"] == "digits")
    until(lambda: controller.all("hello", Hello)[-1].revision == 2, "the revision", step_s=0.2)
    desire(controller, 3, state(3, DIGITS), state(1, SPEECH))
    assert outcome(controller, "digits", 3).outcome == "succeeded"
    assert client.infer("digits")[0] == 200


def test_both_serve_again_after_a_kill(both: Device, controller: Controller) -> None:
    both.end(signal.SIGKILL)
    before = len(controller.all("hello", Hello))
    both.start()
    until(lambda: len(controller.all("hello", Hello)) > before, "a hello of the new start")
    client = Client(both)
    assert [client.infer(name)[0] for name in ("digits", "speech")] == [200, 200]
    hello = controller.all("hello", Hello)[-1]
    assert hello.desired_form == WINDOWS
    assert isinstance(hello.models, tuple)
    assert [(m.name, m.revision, m.release, m.variant) for m in hello.models] == [
        ("digits", 1, DIGITS.digest, "best"),
        ("speech", 1, SPEECH.digest, "best"),
    ]


def test_an_older_controller_means_its_one_model_and_no_other(
    both: Device, controller: Controller
) -> None:
    controller.desire(5, DIGITS)
    assert controller.outcome(5).outcome == "succeeded"
    client = Client(both)
    until(lambda: client.infer("speech")[0] == 404, "the removal of the other")
    controller.desire(6, None)
    until(lambda: controller.all("hello", Hello)[-1].revision == 6, "the revision", step_s=0.2)
    assert client.infer("digits")[0] == 200, "nothing is ordered, and nothing taken away"


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        ((state(2, DIGITS), state(2, DIGITS)), "model digits is named twice"),
        (
            (ModelState(name="speech", revision=2, release=DIGITS.ref),),
            "model speech has a package of another model: digits:1.0.0",
        ),
    ],
)
def test_models_that_cannot_be_are_refused_and_change_nothing(
    both: Device, controller: Controller, models: tuple[ModelState, ...], fault: str
) -> None:
    desire(controller, 2, *models)
    refusal = until(lambda: controller.all("refusal", Refusal), "the refusal")[-1]
    assert fault in refusal.detail
    client = Client(both)
    assert [client.infer(name)[0] for name in ("digits", "speech")] == [200, 200]


def test_each_has_its_own_policy(both: Device, controller: Controller) -> None:
    other = PolicySpec(kind="rules", dwell_s=7.0)
    desire(controller, 2, state(1, DIGITS), state(1, SPEECH, other))
    until(
        lambda: both.ask("status", model="speech")["policy"]["dwell_s"] == 7.0,
        "the policy",
    )
    assert both.ask("status", model="digits")["policy"]["dwell_s"] == POLICY.dwell_s
    told = controller.event("policy", lambda event: event.data["changed"] == {"dwell_s": 7.0})
    assert told.data["model"] == "speech"


def test_a_model_that_does_not_fit_beside_another_is_named(
    both: Device, controller: Controller
) -> None:
    (both.procfs / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 1 kB\n")
    until(lambda: both.ask("status")["health"]["memory_available_bytes"] == 1024, "the reading")
    large = null_package("1.0.0", name="video")
    controller.chunks.add(*large.blobs)
    desire(controller, 2, state(1, DIGITS), state(1, SPEECH), state(2, large))
    failed = outcome(controller, "video", 2)
    assert (failed.outcome, failed.error_code) == ("failed", "agent.variant")
    assert "of video:1.0.0 needs" in failed.detail
    assert "are available beside the other models: " in failed.detail


def _without_variant(controller: Controller) -> dict[str, str | None]:
    """Return the models of the last greeting that have a release and no variant."""
    hello = controller.all("hello", Hello)[-1]
    assert isinstance(hello.models, tuple)
    return {m.name: m.release for m in hello.models if m.release and m.variant is None}


def test_clients_unload_and_load_where_the_operator_allows_it(
    device: Device, controller: Controller
) -> None:
    device.config_path.write_text(device.config_path.read_text() + "allow_load = true\n")
    bring_both(device, controller)
    client = Client(device)
    assert "model_repository" in client.ask("GET", "/v2")[1]["extensions"]
    assert device.process is not None
    agent = psutil.Process(device.process.pid)
    before = len(agent.children())
    for _twice in range(2):
        assert client.ask("POST", "/v2/repository/models/speech/unload")[0] == 200
    until(lambda: len(agent.children()) == before - 1, "the end of its worker")
    status, answer = client.infer("speech")
    assert (status, "model speech was unloaded by a client" in answer["error"]) == (503, True)
    assert client.infer("digits")[0] == 200
    assert client.ask("GET", "/v2/health/ready")[0] == 200, "it need not answer"
    assert client.ask("GET", "/v2/models/speech/ready")[0] == 503
    index = client.ask("POST", "/v2/repository/index")[1]
    assert [(m["name"], m["state"], m["reason"]) for m in index] == [
        ("digits", "READY", ""),
        ("speech", "UNAVAILABLE", answer["error"]),
    ]
    assert [m["name"] for m in client.ask("POST", "/v2/repository/index", {"ready": True})[1]] == [
        "digits"
    ]
    told = until(lambda: _without_variant(controller), "that the controller hears of it")
    assert told == {"speech": SPEECH.digest}, "it has the release, and no variant serves"
    for _twice in range(2):
        assert client.ask("POST", "/v2/repository/models/speech/load")[0] == 200
    assert client.infer("speech")[0] == 200
    status, answer = client.ask("POST", "/v2/repository/models/speeck/load")
    assert (status, "unknown model: 'speeck'" in answer["error"]) == (404, True)
    configured = {"parameters": {"config": "{}"}}
    status, answer = client.ask("POST", "/v2/repository/models/speech/load", configured)
    assert (status, "as its policy runs it" in answer["error"]) == (400, True)
    # A release of it that is installed serves, whatever a client has unloaded.
    assert client.ask("POST", "/v2/repository/models/digits/unload")[0] == 200
    newer = null_package("2.0.0")
    controller.chunks.add(*newer.blobs)
    desire(controller, 2, state(2, newer), state(1, SPEECH))
    assert outcome(controller, "digits", 2).outcome == "succeeded"
    assert client.infer("digits")[1]["model_version"] == "2.0.0"


def test_without_leave_nobody_unloads(both: Device) -> None:
    client = Client(both)
    status, answer = client.ask("POST", "/v2/repository/models/speech/unload")
    assert (status, "allow_load = true" in answer["error"]) == (501, True)
    assert client.infer("speech")[0] == 200


@pytest.fixture
def lent(device: Device, controller: Controller) -> Device:
    """Return a device that serves two models, which clients may unload."""
    text = device.config_path.read_text().replace("confirm_s = 0.5", "confirm_s = 3")
    device.config_path.write_text(text + "allow_load = true\n")
    bring_both(device, controller)
    return device


def test_a_client_that_unloads_a_model_fails_no_install_of_it(
    lent: Device, controller: Controller
) -> None:
    newer, broken = null_package("2.0.0"), null_package("3.0.0", wrong=True)
    controller.chunks.add(*newer.blobs, *broken.blobs)
    client = Client(lent)
    desire(controller, 2, state(2, newer), state(1, SPEECH))
    until(lambda: client.infer("digits")[1].get("model_version") == "2.0.0", "the switch")
    assert client.ask("POST", "/v2/repository/models/digits/unload")[0] == 200
    ended = outcome(controller, "digits", 2)
    assert (ended.outcome, ended.active, ended.variant) == ("succeeded", newer.digest, None)

    # What is sent again says the same while the model rests.
    before = len(controller.all("report", InstallReport))
    desire(controller, 2, state(2, newer), state(1, SPEECH))
    again = until(
        lambda: [
            r for r in controller.all("report", InstallReport)[before:] if r.model == "digits"
        ],
        "the report again",
    )
    assert (again[-1].outcome, again[-1].active) == ("succeeded", newer.digest)

    # An install that goes back does not load what a client has unloaded.
    desire(controller, 3, state(3, broken), state(1, SPEECH))
    assert outcome(controller, "digits", 3).error_code == "agent.golden"
    assert client.infer("digits")[0] == 503
    assert client.ask("POST", "/v2/repository/models/digits/load")[0] == 200
    assert client.infer("digits")[1]["model_version"] == "2.0.0"


def test_a_first_install_that_is_called_off_leaves_nothing(
    device: Device, controller: Controller
) -> None:
    large = null_package("2.0.0", padding_bytes=3_000_000)
    controller.chunks.add(*SPEECH.blobs, *large.blobs)
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    desire(controller, 1, state(1, SPEECH))
    assert outcome(controller, "speech", 1).outcome == "succeeded"
    desire(controller, 2, state(2, large), state(1, SPEECH))
    parts = device.config.state_dir / "parts"
    until(lambda: any(parts.iterdir()), "the beginning of the transfer", step_s=0.01)
    desire(controller, 3, ModelState(name="digits", revision=3, release=None), state(1, SPEECH))
    packages = device.config.state_dir / "packages"
    incoming = device.config.state_dir / "incoming"

    def is_clean() -> bool:
        whole = {path.name for path in packages.iterdir()}
        return whole == {SPEECH.digest} and not [*incoming.iterdir(), *parts.iterdir()]

    until(is_clean, "nothing of it on the storage")
    assert Client(device).infer("speech")[0] == 200


def test_a_model_that_is_named_again_at_its_old_revision_stays_or_comes_back(
    both: Device, controller: Controller
) -> None:
    desire(controller, 2, state(1, SPEECH))
    desire(controller, 3, state(1, DIGITS), state(1, SPEECH))
    until(lambda: both.ask("status")["revision"] == 3, "the newest desired state")
    client = Client(both)

    def settled() -> bool:
        status = both.ask("status")
        models = {m["model"]: (m["phase"], m["variant"]) for m in status["models"]}
        return models.get("digits", ("", None)) == ("idle", "best")

    until(settled, "the model that is named")
    assert client.infer("digits")[0] == 200
