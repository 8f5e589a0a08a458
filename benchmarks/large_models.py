"""How much memory a build of a large ONNX model takes, beside ONNX Runtime's quantizers themselves.

`python benchmarks/large_models.py [--size-mib N] [--where DIR] [--quick] [--json] [--check]`

A model of square matrix products with random weights is written with external data and built for
ONNX Runtime in float32, half precision, dynamic int8 and int4, and for OpenVINO. The memory is
sampled over the build and all of its steps' processes. The peers are what a user would call
instead: `quantize_dynamic` and `MatMulNBitsQuantizer` on the same file, each in a process of its
own.

Rules:
- Memory is what processes hold for themselves: pages of a mapped file are the system's, which
  takes them back when it needs them. A row of its own has the resident size with them.
- A peer that holds more than `STOP_BYTES` is ended, and the row says so.
- The disk needs room for about five times the model; everything is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

from benchmarks.harness import Row, against, alone, main, not_measured
from packager.build import build
from packager.device_profiles import load_profile
from packager.judge.gates import Gates
from packager.request import BuildRequest

MIB: Final = 1024**2
SIZE_MIB: Final = 2253
QUICK_MIB: Final = 128
WIDTH: Final = 4096
SAMPLES: Final = 32
PERIOD_S: Final = 0.02
STOP_BYTES: Final = 15 * 512 * MIB
BOUND: Final = 2.0
"""The aim: the memory of a build stays below the model's size times this, and `REST_MIB`."""

REST_MIB: Final = 1024.0
PROFILE: Final = """\
name = "bench"
architecture = "{architecture}"
cpu_count = 1
memory_bytes = 68719476736
storage_bytes = 68719476736
runtimes = ["onnxruntime", "openvino"]
"""
DYNAMIC: Final = """\
import sys
from onnxruntime.quantization import QuantType, quantize_dynamic
quantize_dynamic(
    sys.argv[1], sys.argv[2], op_types_to_quantize=["MatMul"], per_channel=True,
    weight_type=QuantType.QInt8, use_external_data_format=True,
)
"""
INT4: Final = """\
import sys
import onnx
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
made = MatMulNBitsQuantizer(
    onnx.load(sys.argv[1]), bits=4, block_size=32, is_symmetric=True, accuracy_level=4
)
made.process()
made.model.save_model_to_file(sys.argv[2], use_external_data_format=True)
"""
PEERS: Final = {
    "build-onnxruntime-int8-dynamic": ("quantize_dynamic", DYNAMIC),
    "build-onnxruntime-int4": ("MatMulNBitsQuantizer", INT4),
}
"""Our step, and what a user would run instead: its name and its program."""


@dataclass
class Peaks:
    """The most memory that was seen, in bytes."""

    own: int = 0
    resident: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    """Of the process of each step."""


class Sampler:
    """Samples the memory of processes while a block runs.

    Args:
        root: The process whose children are sampled with it.
        stop_bytes: When to end it; None for never.
    """

    def __init__(self, root: psutil.Process, stop_bytes: int | None = None) -> None:
        self.peaks = Peaks()
        self.stopped = False
        self._root = root
        self._stop_bytes = stop_bytes
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(PERIOD_S):
            own = resident = 0
            for process in _family(self._root):
                try:
                    memory, command = process.memory_info(), process.cmdline()
                except psutil.Error:
                    continue  # it has ended
                held = memory.rss - memory.shared
                own, resident = own + held, resident + memory.rss
                if command and command[-1].endswith("job.json"):
                    step = Path(command[-1]).parent.name.rpartition("-")[0]
                    self.peaks.steps[step] = max(held, self.peaks.steps.get(step, 0))
            self.peaks.own = max(own, self.peaks.own)
            self.peaks.resident = max(resident, self.peaks.resident)
            if self._stop_bytes is not None and own > self._stop_bytes:
                self.stopped = True
                self._root.kill()
                return


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def write_model(folder: Path, size_bytes: int) -> Path:
    """Write a model of matrix products, without holding more than one of its weights.

    Args:
        folder: Where to.
        size_bytes: Of its weights, at least.

    Returns:
        The model; its weights are beside it.
    """
    layers = -(-size_bytes // (4 * WIDTH * WIDTH))
    rng = np.random.default_rng(1)
    weights, nodes = [], []
    with (folder / "large.bin").open("wb") as stream:
        for index in range(layers):
            tensor = TensorProto(
                name=f"w{index}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH],
                data_location=TensorProto.EXTERNAL,
            )  # fmt: skip
            places = {"location": "large.bin", "offset": stream.tell(), "length": 4 * WIDTH**2}
            for key, value in places.items():
                tensor.external_data.add(key=key, value=str(value))
            values = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)
            stream.write(values.data)
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"y{index}"]))
            nodes.append(helper.make_node("Tanh", [f"y{index}"], [f"x{index + 1}"]))
    graph = helper.make_graph(
        nodes, "large",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, ["batch", WIDTH])],
        weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(folder / "large.onnx"))
    return folder / "large.onnx"


def measure(size_mib: int, where: Path | None) -> list[Row]:
    """Build a model and call the peers, one after the other.

    Args:
        size_mib: Size of its weights, in MiB.
        where: A folder on a disk with room; None for the system's.

    Returns:
        The rows.
    """
    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        model = write_model(folder, size_mib * MIB)
        size_bytes = (folder / "large.bin").stat().st_size
        peaks = _built(model, folder)
        model_row = alone("model: size of its weights", [size_bytes / MIB], unit="MiB")
        most_mib = BOUND * size_bytes / MIB + REST_MIB
        rows = [
            model_row,
            alone("build: all processes", [peaks.own / MIB], unit="MiB", at_most=round(most_mib)),
            alone("build: all processes, with mapped files", [peaks.resident / MIB], unit="MiB"),
        ]
        for step, (peer, program) in PEERS.items():
            theirs = _called(program, model, folder / f"{peer}.onnx")
            ours = peaks.steps.pop(step, 0) / MIB
            if theirs is None:
                rows.append(not_measured(step, f"over {STOP_BYTES >> 20} MiB or failed", peer=peer))
                rows.append(alone(step, [ours], unit="MiB"))
            else:
                rows.append(against(step, [ours], [theirs / MIB], unit="MiB", peer=peer,
                                    at_most=1.0))  # fmt: skip
        return [*rows, *(alone(s, [held / MIB], unit="MiB") for s, held in peaks.steps.items())]


def _built(model: Path, folder: Path) -> Peaks:
    profile = folder / "bench.toml"
    profile.write_text(PROFILE.format(architecture=os.uname().machine))
    rng = np.random.default_rng(2)
    np.savez(folder / "samples.npz", x0=rng.standard_normal((SAMPLES, WIDTH), np.float32))
    request = BuildRequest(
        model=str(model),
        profiles=(load_profile(str(profile)),),
        evaluation=str(folder / "samples.npz"),
        metric="cosine",
        gates=Gates(min_retention=0.0),
        repair_trials=0,
        apart_over_bytes=MIB,
        cache=folder / "cache",
        output=folder / "package",
        min_runs=3,
        min_duration_s=0.0,
    )
    with Sampler(psutil.Process()) as sampler:
        build(request, _say)
    return sampler.peaks


def _say(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def _called(program: str, model: Path, target: Path) -> int | None:
    """Return the peak memory of a program, in bytes; None where it failed or was ended."""
    _say(f"{target.stem} ...")
    with (
        subprocess.Popen([sys.executable, "-c", program, str(model), str(target)]) as process,
        Sampler(psutil.Process(process.pid), STOP_BYTES) as sampler,
    ):
        process.wait()
    return None if sampler.stopped or process.returncode else sampler.peaks.own


def _command(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--size-mib", type=int, default=0)
    parser.add_argument("--where", type=Path)
    known, rest = parser.parse_known_args(argv)
    return main(
        "Packager: memory of a build of a large model",
        lambda quick: measure(known.size_mib or (QUICK_MIB if quick else SIZE_MIB), known.where),
        rest,
    )


if __name__ == "__main__":
    sys.exit(_command(sys.argv[1:]))
