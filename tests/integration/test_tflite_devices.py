"""Packages built with LiteRT on devices that have its predecessor, whose kernels answer otherwise.

What is right there passes its golden test, and what is wrong fails it: on this machine with
tflite-runtime instead of LiteRT, and on a 32-bit Arm board under emulation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from controller.cli import main
from packager.runtimes.litert import tflite_files
from packager.tools import environments
from tests.integration.builds import QUICK, digits, proven, write_profile
from tests.models import trained
from tests.simulators.armv7 import armv7_python
from tests.simulators.locked_environment import LOCKS, NoEnvironmentError, locked_environment
from tests.simulators.patience import PATIENCE_S
from wire.package.manifest import manifest_from_bytes, manifest_to_bytes

ROOT = Path(__file__).resolve().parents[2]
RESNET = "mlperf_tiny/ic_resnet8_int8.tflite"
IMAGES = 300
PROGRAM = """
import json, sys
from pathlib import Path
from runtime_adapters.golden import check_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from wire.package.index import asset_directory
from wire.package.manifest import manifest_from_bytes
package, name = Path(sys.argv[1]), sys.argv[2]
variant = manifest_from_bytes((package / "manifest.json").read_bytes()).variant(name)
info = variant.info
session = open_session(package / variant.directory, info, Limits())
result = check_golden(session, info, package / asset_directory(info.golden.asset))
print(json.dumps([session.describe().kernels, result.passed, result.detail]))
"""


class Verdict(NamedTuple):
    kernels: str
    passed: bool
    detail: str


Device = Callable[[Path, str], Verdict]


@pytest.fixture(scope="module", params=["here", pytest.param("armv7", marks=pytest.mark.thorough)])
def device(request: pytest.FixtureRequest) -> Device:
    """What runs the golden test of a variant in a process of its own, as such a device does."""
    if request.param == "here" and sys.version_info[:2] > (3, 11):
        pytest.skip("tflite-runtime has no wheel for this Python")
    try:
        command = (
            armv7_python(ROOT)
            if request.param == "armv7"
            else [str(locked_environment(LOCKS / "tflite.lock"))]
        )
    except NoEnvironmentError as exc:
        pytest.skip(str(exc))

    def run(package: Path, variant: str) -> Verdict:
        done = subprocess.run(
            [*command, "-c", PROGRAM, str(package), variant],
            cwd=package, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        if done.returncode < 0:
            return Verdict("", passed=False, detail=f"ended by signal {-done.returncode}")
        assert done.returncode == 0, done.stderr
        return Verdict(*json.loads(done.stdout))

    return run


def build(folder: Path, model: Path, *more: str) -> Path:
    profile, package = write_profile(folder, "litert"), folder / "package"
    arguments = ("-p", str(profile), "--cache", str(folder / "cache"), "-o", str(package), *QUICK)
    assert main(["build", str(model), *arguments, *more, "--json"]) == 0
    return package


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of MLPerf Tiny's int8 ResNet-8, proven on photographs."""
    folder = tmp_path_factory.mktemp("resnet")
    model = trained(RESNET)
    with np.load(trained("cifar10/val1000.npz")) as arrays:
        pixels, labels = arrays["x"][:IMAGES], arrays["y"][:IMAGES]
    images = (pixels.astype(np.int16) - 128).astype(np.int8)
    data = folder / "evaluation.npz"
    np.savez(data, allow_pickle=False, input_1_int8=images, labels=labels)
    return build(folder, model, "--evaluation", str(data))


@pytest.fixture(scope="module")
def numerals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of the demo's model, with variants that tflite-runtime computes wrong."""
    if environments.environment_python("onnx2tf", environments.default_root()) is None:
        pytest.skip("onnx2tf is not set up; fleet tool install onnx2tf")
    folder = digits(tmp_path_factory.mktemp("digits"))
    data = [f"--{name}={folder / f'{name}.npz'}" for name in ("calibration", "evaluation")]
    kept = [f"--keep=litert-{name}" for name in ("fp32", "int8", "int8-dynamic", "int4")]
    return build(folder, folder / "digits.onnx", *data, *kept)


def changed(package: Path, target: Path, **golden: Any) -> Path:
    """A copy of a package whose golden tests are changed."""
    shutil.copytree(package, target)
    manifest = manifest_from_bytes((target / "manifest.json").read_bytes())
    variants = tuple(
        msgspec.structs.replace(
            variant,
            info=msgspec.structs.replace(
                variant.info, golden=msgspec.structs.replace(variant.info.golden, **golden)
            ),
        )
        for variant in manifest.variants
        if variant.info.golden is not None
    )
    made = msgspec.structs.replace(manifest, variants=variants)
    (target / "manifest.json").write_bytes(manifest_to_bytes(made))
    return target


def weights(model: Any, which: int) -> Any:
    """Return the buffer that holds the weights of the operator at a place."""
    main_graph = model.subgraphs[0]
    heavy = [op for op in main_graph.operators if len(op.inputs) > 2]
    return model.buffers[main_graph.tensors[heavy[which].inputs[1]].buffer]


def test_a_right_variant_passes_where_other_kernels_compute(resnet: Path, device: Device) -> None:
    proven(resnet)
    found = device(resnet, "litert-given")
    assert found == Verdict("tflite-runtime: CPU", passed=True, detail="")


def test_its_answers_there_are_far_from_those_of_the_builds_kernels(
    resnet: Path, device: Device, tmp_path: Path
) -> None:
    older = changed(resnet, tmp_path / "older", other_tolerances=msgspec.UNSET)
    found = device(older, "litert-given")
    assert not found.passed
    assert "times its tolerance" in found.detail


@pytest.mark.few(2)
@pytest.mark.parametrize("which", [0, -1])
def test_a_layer_with_weights_in_another_order_fails(
    resnet: Path, device: Device, tmp_path: Path, which: int
) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(resnet, wrong)
    path = wrong / "litert-given" / "model.tflite"
    model = tflite_files.read(path)
    buffer = weights(model, which)
    buffer.data = np.roll(np.asarray(buffer.data), len(buffer.data) // 10)
    tflite_files.write(model, path)
    assert not device(wrong, "litert-given").passed


def test_what_tflite_runtime_computes_wrong_is_refused_and_the_rest_serves(
    numerals: Path, device: Device
) -> None:
    proven(numerals)
    for name in ("litert-fp32", "litert-int8"):
        found = device(numerals, name)
        assert found.passed, found.detail
        assert found.kernels.startswith("tflite-runtime: ")
    # It takes the packed weights of four bits for bytes, so it may read beyond their end, too.
    for name in ("litert-int8-dynamic", "litert-int4"):
        assert not device(numerals, name).passed
