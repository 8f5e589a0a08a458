"""What a package promises and a limit allows: where the work runs, and on how many threads.

Rules:
- Every fallback here is one that this machine really makes; where it has what is asked for, there
  is none to see, and the test is skipped with that reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agent.serve.model_server import ModelServer
from runtime_adapters.registry import open_session
from tests.contract.adapter_models import KITS, LIMITS, Kit, batch, expected
from tests.simulators.packages import package, variant
from wire.clock import SystemClock
from wire.package.variant import VariantInfo

ROOT = Path(__file__).resolve().parents[2]
KIT = {kit.name: kit for kit in KITS}
ABSENT = "ACLExecutionProvider"
REGISTERED = "AzureExecutionProvider"
"""Built into ONNX Runtime's wheels; takes no node but its own, which call a service."""


def promising(kit: Kit, directory: Path, **options: str) -> VariantInfo:
    return msgspec.structs.replace(kit.copying(directory, "FP32"), options=options)


@pytest.mark.parametrize(
    ("kit", "options", "fallback"),
    [
        ("onnxruntime", {"provider": ABSENT}, f"promised was {ABSENT}"),
        ("onnxruntime", {"provider": REGISTERED}, f"promised was {REGISTERED}"),
        ("openvino", {"device": "GPU"}, "device is CPU, promised was GPU"),
        ("openvino", {"device": "NPU"}, "device is CPU, promised was NPU"),
    ],
)
def test_what_is_absent_is_replaced_by_the_processor_and_said(
    tmp_path: Path, kit: str, options: dict[str, str], fallback: str
) -> None:
    if present(options):
        pytest.skip(f"this machine has {options}")
    chosen = KIT[kit]
    session = open_session(tmp_path, promising(chosen, tmp_path, **options), LIMITS)
    description = session.describe()
    assert description.devices == (chosen.device,)
    assert fallback in description.fallback
    inputs = batch()
    np.testing.assert_array_equal(session.infer(inputs)["y"], expected(chosen, session, inputs))


@pytest.mark.parametrize(
    ("kit", "options"),
    [
        ("onnxruntime", {"provider": "CPUExecutionProvider"}),
        ("openvino", {"device": "CPU"}),
        ("litert", {"delegate": "xnnpack"}),
    ],
)
def test_a_promise_that_is_kept_is_no_fallback(
    tmp_path: Path, kit: str, options: dict[str, str]
) -> None:
    if lacking := KIT[kit].missing():
        pytest.skip(lacking)
    description = open_session(
        tmp_path, promising(KIT[kit], tmp_path, **options), LIMITS
    ).describe()
    assert (description.devices, description.fallback) == ((KIT[kit].device,), "")


class Told:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Mapping[str, Any]]] = []

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Forget a value."""

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Forget an amount."""

    def request(self, *figures: object) -> None:
        """Forget the figures of a request."""

    def event(self, kind: str, reason: str, data: Mapping[str, Any]) -> None:
        """Keep an event."""
        self.events.append((kind, reason, data))


def test_a_fallback_in_a_worker_is_an_event(tmp_path: Path) -> None:
    kit = KIT["onnxruntime"]
    info = promising(kit, tmp_path, provider=ABSENT)
    made = variant("a")
    fields = {name: getattr(info, name) for name in ("runtime", "model_file", "inputs", "outputs")}
    chosen = msgspec.structs.replace(
        made, info=msgspec.structs.replace(made.info, options=info.options, **fields)
    )
    content = (tmp_path / kit.model_file).read_bytes()
    signed = package("1.0", [(chosen, content)])
    signed.write_to(tmp_path / "package")
    told = Told()
    server = ModelServer(told, SystemClock())
    try:
        server.discard(server.prepare(tmp_path / "package", signed.digest, chosen))
    finally:
        server.stop()
    kinds = [(kind, reason, data["variant"]) for kind, reason, data in told.events]
    assert kinds == [("fallback", f"provider is CPUExecutionProvider, promised was {ABSENT}", "a")]


THREADS = """
import json, sys
from pathlib import Path
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.contract.adapter_models import KITS, batch
kit = next(kit for kit in KITS if kit.name == sys.argv[1])
directory = Path(sys.argv[2])
info = kit.copying(directory, "FP32")
counts = []
for threads in (1, 1, 3):
    session = open_session(directory, info, Limits(threads=threads))
    session.infer(batch())
    counts.append(len(list(Path("/proc/self/task").iterdir())))
    session.close()
    del session
print(json.dumps(counts))
"""


@pytest.mark.few(4)
def test_a_session_starts_no_more_threads_than_it_may(kit: Kit, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS, kit.name, str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    _, one, three = json.loads(done.stdout.splitlines()[-1])
    # IREE has as many workers as threads, and one that waits for events, beside the calling thread,
    # which waits for them; OpenVINO starts its threads when there is work for them; TVM's code and
    # the null models have none.
    extra = {"onnxruntime": (2, 2), "litert": (2, 2), "iree": (4, 4), "openvino": (0, 2)}
    least, most = extra.get(kit.runtime, (0, 0))
    assert least <= three - one <= most


def present(options: Mapping[str, str]) -> bool:
    """Tell whether this machine has what the options ask for and these tests want to be absent."""
    if "device" in options:
        from runtime_adapters.openvino.library import openvino

        found = [str(name).partition(".")[0] for name in openvino.Core().available_devices]
        return options["device"] in found
    from runtime_adapters.onnxruntime.library import onnxruntime

    return options["provider"] == ABSENT and ABSENT in onnxruntime.get_available_providers()
