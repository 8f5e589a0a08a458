"""A model that a client unloads: what is told of it, and the way back that the document shows."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from tritonclient import http as triton

from tests.integration.test_agent_models import (
    DIGITS,
    SPEECH,
    bring_both,
    desire,
    outcome,
    state,
)
from tests.simulators.agent_process import Controller, Device
from tests.simulators.endpoint_client import Client
from tests.simulators.patience import PATIENCE_S, until
from wire.presence import Hello

pytestmark = pytest.mark.broker

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "endpoint.md"
QUIET: Final[dict[str, Any]] = {"capture_output": True, "text": True, "timeout": PATIENCE_S}


def test_an_unloaded_model_is_explained_wherever_somebody_looks(
    device: Device, controller: Controller
) -> None:
    device.config_path.write_text(
        device.config_path.read_text() + "allow_load = true\nmetrics = true\n"
    )
    bring_both(device, controller)
    client = Client(device)
    page = client.ask("POST", "/v2/repository/models/speech/unload", Origin="http://elsewhere")
    assert page == (403, {"error": "a page in a browser may not load or unload models"})
    assert client.ask("POST", "/v2/repository/models/speech/unload")[0] == 200
    why = (
        "model speech was unloaded by a client: POST /v2/repository/models/speech/load loads it "
        "again, and so does a new release of it or a restart of the agent"
    )
    assert client.infer("speech") == (503, {"error": why})
    for path in ("/v2/models/speech", "/v2/models/speech/ready", "/v2/models/speech/config"):
        assert client.ask("GET", path) == (503, {"error": why})
    status = device.command("status", "--model", "speech")
    assert "package     speech:4.0.0" in status.stdout
    assert f"variant     none ({why})" in status.stdout
    assert status.returncode == 1
    variants = device.command("variants", "--model", "speech")
    assert "the model is unloaded" in variants.stdout
    assert why in variants.stderr
    pinned = device.command("pin", "--model", "speech", "small")
    assert pinned.stdout == f"pinned to small, but {why}\n"
    freed = device.command("pin", "--model", "speech", "--clear")
    assert freed.stdout == f"not pinned; {why}\n"
    metrics = client.text("/metrics")
    none = 'model="speech",version="none",variant="none"'
    assert f'edgefleet_requests_total{{{none},outcome="refused",status="503"}} 1' in metrics
    gauge = 'edgefleet_variant_ready{model="speech",version="4.0.0",variant="none"} 0'
    assert gauge in metrics

    desire(controller, 2, state(1, DIGITS), state(2, SPEECH))
    assert outcome(controller, "speech", 2).outcome == "succeeded"
    assert client.infer("speech")[0] == 200, "who orders it wants it to serve"
    assert client.ask("POST", "/v2/repository/models/speech/unload")[0] == 200

    assert client.ask("POST", "/v2/repository/models/digits/unload")[0] == 200
    code, answer = client.ask("GET", "/v2/health/ready")
    assert (code, why in answer["error"]) == (503, True)

    device.end(signal.SIGTERM)
    before = len(controller.all("hello", Hello))
    device.start()
    until(lambda: len(controller.all("hello", Hello)) > before, "a hello of the new start")
    assert Client(device).infer("speech")[0] == 200, "a restart loads it"


def test_unloading_works_as_the_document_shows_it(device: Device, controller: Controller) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl here")
    section = (
        DOCUMENT.read_text().partition("\n## Loading and unloading\n")[2].partition("\n## ")[0]
    )
    toml, commands = re.findall(r"```(?:toml)?\n(.*?)```", section, re.DOTALL)
    setting = toml.removeprefix("[endpoint]\n")
    device.config_path.write_text(device.config_path.read_text() + setting)
    bring_both(device, controller)
    client = Client(device)
    host, port = client.address
    ready = []
    for line in commands.splitlines():
        command = line.replace("127.0.0.1:8500", f"{host}:{port}").replace("detector", "speech")
        words = shlex.split(command, comments=True)
        done = subprocess.run([curl, "-sS", "--fail-with-body", *words[1:]], check=False, **QUIET)
        assert done.returncode == 0, done
        ready.append((client.infer("speech")[0], "UNAVAILABLE" in done.stdout))
    assert ready == [(503, False), (503, True), (200, False)]

    # An unmodified client of Triton does the same.
    with triton.InferenceServerClient(f"{host}:{port}") as other:
        other.unload_model("speech")
        assert not other.is_model_ready("speech")
        other.load_model("speech")
        assert other.is_model_ready("speech")
