"""Samples of an agent reach the operator's directory: its process, a broker and a controller."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agent.app.capturing import DIRECTORY
from packager.samples.readers import SampleSource, read_shapes
from tests.simulators.agent_process import null_package
from tests.simulators.packages import IO
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Stack, running_stack
from tests.simulators.stack_devices import StackDevice, publish
from wire.capture import PIECE_BYTES
from wire.trust.envelope import SigningKey

pytestmark = pytest.mark.broker
ROWS = 3 * PIECE_BYTES // 16
"""With the answer, as large as the question, it goes in seven parts."""

MARK = np.frombuffer(b"what nobody else may read 123456", np.float32).reshape(-1, 4)
"""Stands in every question, as bytes that a search finds."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as made:
        yield made


@pytest.fixture(scope="module")
def device(stack: Stack) -> Iterator[StackDevice]:
    """An agent that serves a release of which nothing is captured."""
    token = stack.ok("token", "create", "--json").json["token"]
    agent = StackDevice(stack, "cam-1", token)
    agent.start()
    agent.until_online()
    publish(stack, null_package("1.0.0", key=SigningKey(stack.release_key.read_bytes())))
    stack.ok("rollout", "create", "digits:1.0.0", "--watch")
    yield agent
    if agent.process is not None:
        agent.end(signal.SIGKILL)


def ask(device: StackDevice, x: NDArray[np.float32]) -> None:
    """Ask with raw bytes."""
    tensor = {
        "name": "x", "datatype": "FP32", "shape": x.shape,
        "parameters": {"binary_data_size": x.nbytes},
    }  # fmt: skip
    header = json.dumps({"inputs": [tensor]}).encode()
    host, _, port = str(device.ask("status")["endpoint"]).rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    headers = {"Inference-Header-Content-Length": str(len(header))}
    connection.request("POST", "/v2/models/digits/infer", header + x.tobytes(), headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 200


def listed(stack: Stack) -> dict[str, Any]:
    found = stack.ok("capture", "list", "--json").json
    return dict(found[0]) if found else {}


def is_whole(stack: Stack, device: StackDevice, x: NDArray[np.float32]) -> bool:
    """Tell whether the controller has all of a question; ask it while nothing of it has come."""
    shown = listed(stack)
    if shown["sample_bytes"] > x.nbytes:  # counted from its first part on
        return bool(shown["partial"] == 0)
    ask(device, x)  # the one before may have come while the worker was busy
    ask(device, MARK)  # takes the sample along
    return False


def test_what_is_captured_reaches_the_operator_and_nobody_else(
    stack: Stack, device: StackDevice, tmp_path: Path
) -> None:
    kept = device.config.state_dir / DIRECTORY
    ask(device, MARK)
    assert listed(stack) == {}
    assert not kept.exists(), "nobody has asked for it"

    key = tmp_path / "samples.key"
    stack.ok("capture", "key", str(key))
    start = ("capture", "start", "digits", "--public-key", f"{key}.pub")
    assert "nothing says which requests" in stack.fleet(*start).err
    stack.ok(*start, "--share", "1", "--bytes-per-day", "50MB")
    until(lambda: listed(stack)["accepted"] == 1, "a device that knows of it", step_s=0.05)
    large = np.concatenate([MARK, np.random.default_rng(1).random((ROWS, 4), np.float32)])

    until(lambda: is_whole(stack, device, MARK), "a sample", step_s=0.05)
    until(lambda: is_whole(stack, device, large), "the large one", step_s=0.1)

    to = tmp_path / "samples"
    pull = ("capture", "pull", "digits", "--private-key", str(key), "--to", str(to))
    assert " new samples in " in stack.ok(*pull).out
    lines = [json.loads(line) for line in (to / "index.jsonl").read_text().splitlines()]
    assert {(each["device"], each["release"], each["why"]) for each in lines} == {
        ("cam-1", "digits:1.0.0", "share")
    }
    found: list[NDArray[Any]] = []
    for each in lines:
        with np.load(to / each["inputs"]) as inputs, np.load(to / each["answers"]) as answers:
            found.append(inputs["x"])
            assert answers["y"].shape == inputs["x"].shape
    assert any(np.array_equal(each, large) for each in found)
    assert any(np.array_equal(each, MARK) for each in found)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sets = read_shapes(SampleSource(to / "inputs"), IO, scratch, least=1)
    assert sum(len(each.inputs["x"]) for each in sets) == sum(len(each) for each in found)
    assert f", {len(lines)} were there\n" in stack.ok(*pull).out

    other = tmp_path / "other.key"
    stack.ok("capture", "key", str(other))
    wrong = (*pull[:4], str(other), "--to", str(tmp_path / "other"))
    assert stack.fleet(*wrong).code == 1
    assert not (tmp_path / "other").exists(), "no sample was written"
    for path in (*stack.home.rglob("*"), *device.config.state_dir.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a sample that has been sent
            assert not path.is_file() or MARK.tobytes() not in path.read_bytes(), path


def test_a_device_that_forbids_it_captures_nothing(
    stack: Stack, device: StackDevice, tmp_path: Path
) -> None:
    assert listed(stack)["is_on"]
    device.end(signal.SIGTERM)
    device.config_path.write_text(f"{device.config_path.read_text()}\n[capture]\nallow = false\n")
    device.start()
    until(lambda: "capture-forbidden" in [line["action"] for line in device.log], "the log's line")
    device.until_online()
    assert not (device.config.state_dir / DIRECTORY).exists()
    public = tmp_path / "third.key.pub"
    stack.ok("capture", "key", str(public.with_suffix("")))
    start = ("capture", "start", "digits", "--public-key", str(public), "--share", "0.5")
    told = stack.ok(*start, "--selector", "id=cam-7").err
    assert "it takes the place of a capture of all devices: 100 %, up to 50 MB a day" in told
    assert "warning: no device matches id=cam-7 yet; no device has id=cam-7; did you mean" in told
    assert "takes the place of a capture of id=cam-7: 50 %" in stack.ok(*start).err
    before = listed(stack)["samples"]
    until(lambda: device.ask("status")["models"], "a model")
    for _ in range(3):
        ask(device, MARK)
    assert not (device.config.state_dir / DIRECTORY).exists()
    assert listed(stack)["samples"] == before
    left = stack.ok("capture", "stop", "digits").out
    assert left == f"model digits: nothing is captured, {before} samples are kept\n"
