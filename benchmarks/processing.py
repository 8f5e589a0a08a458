"""Pre- and post-processing: compiled, in NumPy, and by what a user would pick, in turn.

Pillow smooths where it makes an image smaller, which is more work than what is declared here; the
other peers compute the same. All run in one thread. What a start costs is measured in processes of
their own: without compiled code, with it on disk, and with NumPy alone.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image
from scipy.special import softmax as scipy_softmax  # type: ignore[import-untyped]

from benchmarks.harness import Row, against, alone, main
from benchmarks.programs import program
from runtime_adapters.onnxruntime.library import onnxruntime
from runtime_adapters.processing import numba_kernels, numpy_forms

US_PER_S: Final = 1e6
MIB: Final = 1024
Run = Callable[[], object]


class Case(NamedTuple):
    """One function at one size."""

    name: str
    function: str
    arguments: tuple[Any, ...]
    peer: str
    theirs: Run
    options: dict[str, Any] | None = None

    def of(self, forms: object) -> Run:
        """Return our function in one form."""
        return functools.partial(
            getattr(forms, self.function), *self.arguments, **(self.options or {})
        )


def measure(quick: bool) -> list[Row]:
    """Measure every function, and what a start costs."""
    rounds, round_s = (5, 0.02) if quick else (15, 0.08)
    rows: list[Row] = []
    for case in (*_images(), *_quantised(), *_scores(), *_boxes()):
        runs: dict[str, Run] = {
            "compiled": case.of(numba_kernels),
            "NumPy form": case.of(numpy_forms),
            case.peer: case.theirs,
        }
        times = _alternated(runs, rounds, round_s)
        for one, other in (
            ("compiled", "NumPy form"),
            ("compiled", case.peer),
            ("NumPy form", case.peer),
        ):
            title = f"{case.name}: {one}"
            rows.append(against(title, times[one], times[other], unit="us", peer=other))
    return rows + _starts(2 if quick else 5)


def _images() -> list[Case]:
    random = np.random.default_rng(0)
    photo = random.integers(0, 256, (1, 480, 640, 3), np.uint8)
    pixels = random.integers(0, 256, (1, 224 * 224, 3), np.uint8)
    mean, std = (np.array(values, np.float32) for values in ((0.485, 0.456, 0.406), (0.2,) * 3))
    scale = np.float32(1 / 255)

    def pillow() -> object:
        image = Image.fromarray(photo[0]).resize((224, 224), Image.Resampling.BILINEAR)
        return np.asarray(image, np.float32)

    def usual(*, first: bool) -> object:
        values = (pixels.astype(np.float32) * scale - mean) / std
        return np.ascontiguousarray(values.transpose(0, 2, 1)) if first else values

    return [
        Case("resize 640x480 to 224", "resize_bilinear", (photo, 224, 224), "Pillow", pillow),
        *(
            Case(
                f"normalise 224x224, channels {place}",
                "normalise",
                (pixels, scale, mean, std),
                "plain NumPy",
                functools.partial(usual, first=first),
                {"channels_first": first},
            )
            for first, place in ((True, "first"), (False, "last"))
        ),
    ]


def _quantised() -> list[Case]:
    values = np.random.default_rng(0).normal(size=150_528).astype(np.float32)
    scale, zero = np.array([0.02], np.float32), np.array([3], np.int32)
    codes = numpy_forms.quantize(values, scale, zero, np.dtype(np.int8))
    constants = {"s": scale.reshape(()), "z": zero.astype(np.int8).reshape(())}
    kinds = {"x": TensorProto.FLOAT, "s": TensorProto.FLOAT, "z": TensorProto.INT8}
    quantize = _operator("QuantizeLinear", kinds, {"x": values, **constants})
    kinds = kinds | {"x": TensorProto.INT8}
    dequantize = _operator("DequantizeLinear", kinds, {"x": codes, **constants})
    peer = "ONNX Runtime"
    given = (values, scale, zero, np.dtype(np.int8))
    return [
        Case("quantise 150528", "quantize", given, peer, quantize),
        Case("dequantise 150528", "dequantize", (codes, scale, zero), peer, dequantize),
    ]


def _scores() -> list[Case]:
    random = np.random.default_rng(0)
    few, many = (random.normal(size=(1, n)).astype(np.float32) for n in (1000, 150_000))
    pixels = random.normal(size=(1, 21, 128 * 128)).astype(np.float32)
    cases = [
        Case(
            f"softmax of {name}",
            "softmax",
            (scores, 1),
            "SciPy",
            functools.partial(scipy_softmax, scores, axis=1),
        )
        for name, scores in (("1000 classes", few), ("21 classes of 16384 pixels", pixels))
    ]
    kinds = {"x": TensorProto.FLOAT, "k": TensorProto.INT64}
    for k, scores in ((5, few), (50, many)):
        run = _operator("TopK", kinds, {"x": scores, "k": np.array([k])}, outputs=2)
        name = f"greatest {k} of {scores.size}"
        cases.append(Case(name, "top_k", (scores, k), "ONNX Runtime", run))
    return cases


def _boxes() -> list[Case]:
    random = np.random.default_rng(0)
    kinds = {
        "boxes": TensorProto.FLOAT,
        "scores": TensorProto.FLOAT,
        "most": TensorProto.INT64,
        "iou": TensorProto.FLOAT,
        "least": TensorProto.FLOAT,
    }
    cases: list[Case] = []
    for count, classes in ((100, 1), (1917, 20), (8400, 1)):
        near = random.random((1, count, 2)).astype(np.float32)
        sides = random.random((1, count, 2)).astype(np.float32) * np.float32(0.2)
        boxes = np.concatenate([near, near + sides], axis=2)
        scores = random.random((1, classes, count)).astype(np.float32)
        wanted: dict[str, Any] = {
            "iou_threshold": 0.5,
            "score_threshold": 0.5,
            "max_per_class": 100,
        }
        feeds = {
            "boxes": boxes,
            "scores": scores,
            "most": np.array([100]),
            "iou": np.array([0.5], np.float32),
            "least": np.array([0.5], np.float32),
        }
        cases.append(
            Case(
                f"suppress {count} boxes of {classes} classes",
                "nms",
                (boxes, scores),
                "ONNX Runtime",
                _operator("NonMaxSuppression", kinds, feeds),
                wanted,
            )
        )
    return cases


def _operator(kind: str, kinds: dict[str, int], feeds: dict[str, Any], *, outputs: int = 1) -> Run:
    """Return ONNX Runtime running one operator."""
    names = [f"out{number}" for number in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(kind, list(kinds), names)],
        "one",
        [helper.make_tensor_value_info(name, element, None) for name, element in kinds.items()],
        [helper.make_empty_tensor_value_info(name) for name in names],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, feeds)


def _alternated(runs: dict[str, Run], rounds: int, round_s: float) -> dict[str, list[float]]:
    """Return the median time of each in every round, in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            taken: list[float] = []
            end_s = time.perf_counter() + round_s
            while time.perf_counter() < end_s or not taken:
                before_s = time.perf_counter()
                run()
                taken.append((time.perf_counter() - before_s) * US_PER_S)
            times[name].append(statistics.median(taken))
    return times


def _starts(rounds: int) -> list[Row]:
    """Return what it costs a process to be ready to resize."""
    names = ("compiling", "from disk", "NumPy form")
    times: dict[str, list[float]] = {name: [] for name in names}
    sizes: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for name in names:
                environment = os.environ | {"NUMBA_CACHE_DIR": cache}
                words = ["numpy"] if name == "NumPy form" else []
                done = subprocess.run(
                    [sys.executable, "-P", program("processing_start"), *words],
                    stdout=subprocess.PIPE, text=True, check=True, env=environment,
                )  # fmt: skip
                took_s, resident_kib = done.stdout.split()
                times[name].append(float(took_s))
                sizes[name].append(float(resident_kib) / MIB)
    return [
        *(alone(f"ready to resize, {name}", values, unit="s") for name, values in times.items()),
        *(alone(f"process, {name}", values, unit="MiB") for name, values in sizes.items()),
    ]


if __name__ == "__main__":
    sys.exit(main("Declared processing, one thread", measure))
