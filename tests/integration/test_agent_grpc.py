"""A whole agent that serves gRPC: its process is started, replaced, and ends with the agent."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulators.agent_process import Controller, Device, X, bring_to_serve
from tests.simulators.grpc_rig import is_running
from tests.simulators.patience import PATIENCE_S, until

grpc: Any = pytest.importorskip("grpc", reason="grpcio is not installed")
triton: Any = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
pytestmark = pytest.mark.broker


def line_of(device: Device, *others: int) -> dict[str, Any]:
    """Return the log's line of a gRPC process that is none of these."""

    def find() -> dict[str, Any] | None:
        lines = [line for line in device.log if line["action"] == "grpc-ready"]
        return lines[-1] if lines and lines[-1]["pid"] not in others else None

    return until(find, "a gRPC process")


@pytest.fixture
def both(device: Device, controller: Controller) -> Device:
    """A device that serves a model over HTTP and gRPC."""
    with device.config_path.open("a") as file:
        file.write("[endpoint.grpc]\nport = 0\n")
    bring_to_serve(device, controller)
    return device


def test_the_agent_answers_over_grpc_as_over_http_and_imports_none_of_it(both: Device) -> None:
    assert both.process is not None
    told, expected = both.infer()
    tensor = triton.InferInput("x", X.shape, "FP32").set_data_from_numpy(X)
    address = line_of(both)["address"]
    with triton.InferenceServerClient(address) as client:
        result = client.infer("digits", [tensor])
        # A hot device advises to ask less.
        both.set_temperature_c(84)
        until(lambda: both.ask("status")["levers"]["defer"], "the levers")
    np.testing.assert_allclose(result.as_numpy("y"), expected, rtol=1e-6)
    parameters = result.get_response().parameters
    assert {name: value.string_param for name, value in parameters.items()} == told
    message = triton.service_pb2.ModelInferRequest(model_name="digits")
    message.inputs.add(name="x", datatype="FP32", shape=X.shape)
    message.raw_input_contents.append(X.tobytes())
    with grpc.insecure_channel(address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        _, call = infer.with_call(message.SerializeToString(), timeout=PATIENCE_S)
    advice = dict(call.trailing_metadata())["edgefleet-advice"]
    assert advice.startswith("sampling=0.")
    loaded = Path(f"/proc/{both.process.pid}/maps").read_text()
    assert "grpc" not in loaded
    assert "google" not in loaded


def test_a_killed_grpc_process_is_replaced_while_http_goes_on(
    both: Device, controller: Controller
) -> None:
    first = line_of(both)
    os.kill(first["pid"], signal.SIGKILL)
    event = controller.event("grpc")
    assert "its process was ended by SIGKILL" in event.reason
    both.infer()
    second = line_of(both, first["pid"])
    with triton.InferenceServerClient(second["address"]) as client:
        assert client.is_server_ready()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_grpc_process_does_not_outlive_the_agent(both: Device, how: signal.Signals) -> None:
    pid = line_of(both)["pid"]
    assert is_running(pid)
    both.end(how)
    until(lambda: not is_running(pid), "its end")
    if how is signal.SIGTERM:
        return
    both.start()  # the private socket of the killed agent is in nobody's way
    with triton.InferenceServerClient(line_of(both, pid)["address"]) as client:
        until(client.is_server_ready, "a model that serves")
