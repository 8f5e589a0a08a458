"""Releases whose every answer is known before they are published.

The better variant of each is one for ONNX Runtime. The other one is for the null runtime: its
worker starts in a fraction of the time, and it takes the same way through an install.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from runtime_adapters.golden import save_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.simulators.packages import SignedPackage, package, variant
from tests.simulators.rig import INPUT
from wire.package.golden import Golden, Tolerance
from wire.package.index import CHUNK_BYTES, asset_uri
from wire.package.tensors import TensorSpec
from wire.package.variant import Requirements, Variant
from wire.trust.envelope import SigningKey

NAME: Final = "digits"
BEST: Final = "best"
SPARE: Final = "spare"
RUNTIMES: Final = {BEST: "onnxruntime", SPARE: "null"}
FILES: Final = {BEST: "model.onnx", SPARE: "model.json"}
HIDDEN: Final = 100_000
"""How wide the better variant is: a file of 2.8 MB, which is 22 chunks."""

SPARE_BYTES: Final = 60_000
OUTPUTS: Final = 3
WORKER_BYTES: Final = 64 * 1024 * 1024
ROWS: Final = np.concatenate([INPUT, np.linspace(-1, 1, 28, dtype=np.float32).reshape(7, 4)])
"""The golden samples. What the benchmark asks is the first of them."""

OF_NOBODY: Final = 9_000_000
"""Seed of a model that no release has."""


@dataclass
class Releases:
    """The releases that may serve; nothing else ever may."""

    packages: dict[str, SignedPackage] = field(default_factory=dict)
    """By `name:version`."""

    answers: dict[tuple[str, str], NDArray[np.float32]] = field(default_factory=dict)
    """The golden answer to `INPUT`, by `name:version` and variant."""

    def make(self, number: int, key: SigningKey) -> str:
        """Make and sign a release.

        Args:
            number: Its version is `NUMBER.0.0`.
            key: Signs it.

        Returns:
            Its `name:version`.
        """
        release = f"{NAME}:{number}.0.0"
        pairs, assets = [], {}
        for rank, name in enumerate(RUNTIMES):
            # Each second release has the same spare variant, which is then copied, not fetched.
            content = model(number) if name == BEST else _spare(number % 2)
            answers = _answers(_declared(name, rank), content, ROWS)
            files = save_golden({"x": ROWS}, {"y": answers})
            golden = Golden(
                asset=asset_uri(files),
                samples=len(ROWS),
                tolerances={"y": Tolerance(absolute=1e-5, relative=1e-4)},
            )
            assets[golden.asset] = files
            pairs.append((_declared(name, rank, golden), content))
            self.answers[release, name] = answers[0]
        self.packages[release] = package(
            f"{number}.0.0", pairs, name=NAME, key=key, assets=assets, chunk_bytes=CHUNK_BYTES
        )
        return release

    def of(self, digest: str) -> tuple[str, SignedPackage] | None:
        """Return the release of a digest and its package; None if it is of nobody."""
        found = [each for each in self.packages.items() if each[1].digest == digest]
        return found[0] if found else None


def model(seed: int) -> bytes:
    """Return the ONNX file of two layers of seeded noise.

    Args:
        seed: Of the noise.

    Returns:
        The file.
    """
    rng = np.random.default_rng(seed)
    weights = {
        "a": rng.standard_normal((INPUT.shape[1], HIDDEN), np.float32),
        "b": rng.standard_normal((HIDDEN, OUTPUTS), np.float32) / np.float32(HIDDEN**0.5),
        "c": 10 * rng.standard_normal(OUTPUTS, np.float32),
    }
    value, floats = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("MatMul", ["h", "b"], ["d"]),
            helper.make_node("Add", ["d", "c"], ["y"]),
        ],
        "powercut",
        [value("x", floats, ["n", INPUT.shape[1]])],
        [value("y", floats, ["n", OUTPUTS])],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(made.SerializeToString())


def _spare(seed: int) -> bytes:
    return (b'{"seed": %d}' % seed).ljust(SPARE_BYTES)


def _declared(name: str, rank: int, golden: Golden | None = None) -> Variant:
    made = variant(name, accuracy=0.99 - 0.05 * rank, latency_ms=4.0 / (1 + rank), golden=golden)
    outputs = OUTPUTS if name == BEST else 4
    info = msgspec.structs.replace(
        made.info,
        runtime=RUNTIMES[name],
        model_file=FILES[name],
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, outputs)),),
        requirements=Requirements(memory_bytes=WORKER_BYTES),
    )
    return msgspec.structs.replace(made, info=info)


def _answers(made: Variant, content: bytes, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / made.info.model_file).write_bytes(content)
        session = open_session(Path(directory), made.info, Limits())
        return np.asarray(session.infer({"x": rows})["y"], np.float32)
