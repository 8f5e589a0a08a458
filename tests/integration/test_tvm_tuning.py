"""Searches for schedules: kept, found again, put together, and used by the compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm

from packager.errors import StepError
from packager.plan.targets import TARGETS, named
from packager.runtimes.tvm import lowering as tvm_lowering
from packager.runtimes.tvm.models import compile_model
from packager.runtimes.tvm.tuning import schedules, tune
from packager.tools import toolchains
from runtime_adapters.protocol import Limits, Tensor
from runtime_adapters.registry import open_session
from tests.models import DIGITS, ODD_ANSWER, ODD_SHAPE, ROOT, odd_convolution, uniform
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

NATIVE = next(target for target in TARGETS if toolchains.natively_runnable(target))


def module_of(model: Path, shape: tuple[int, ...]) -> tvm.IRModule:
    return tvm_lowering.imported(tvm_lowering.fixed(model, {"input": shape}))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")
    }


@pytest.fixture(scope="module")
def convolution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return odd_convolution(tmp_path_factory.mktemp("odd") / "model.onnx")


@pytest.fixture(scope="module")
def database(convolution: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("database")
    module = module_of(convolution, ODD_SHAPE)
    result = tune(module, NATIVE, folder, trials_per_task=6)
    assert (result.tasks, result.trials, result.reused) == (1, 6, 0)
    return folder


class Compiled(msgspec.Struct, frozen=True):
    content: bytes
    answer: Tensor


def compiled(model: Path, folder: Path, database: Path | None) -> Compiled:
    folder.mkdir()
    path = folder / "model.so"
    inputs = (TensorSpec(name="input", datatype="FP32", shape=ODD_SHAPE),)
    outputs = (TensorSpec(name="y", datatype="FP32", shape=ODD_ANSWER),)
    compile_model(model, inputs, outputs, NATIVE, path, database=database)
    info = VariantInfo(
        runtime="tvm",
        precision="fp32",
        model_file=path.name,
        inputs=inputs,
        outputs=outputs,
        size_bytes=path.stat().st_size,
    )
    x = uniform(*ODD_SHAPE, seed=1)
    session = open_session(folder, info, Limits())
    answer = session.infer({"input": x})["y"]
    session.close()
    return Compiled(path.read_bytes(), answer)


@pytest.mark.thorough
def test_a_later_build_with_no_trials_takes_the_schedule(
    convolution: Path, database: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    assert schedules(database, NATIVE, first) == 1
    untuned = compiled(convolution, tmp_path / "untuned", None)
    tuned = compiled(convolution, tmp_path / "tuned", first)

    copy = shutil.copytree(database, tmp_path / "copy")
    module = module_of(convolution, ODD_SHAPE)
    result = tune(module, NATIVE, copy, trials_per_task=0)
    assert (result.tasks, result.trials, result.reused) == (1, 0, 1)
    second.mkdir()
    schedules(copy, NATIVE, second)
    again = compiled(convolution, tmp_path / "again", second)

    assert tuned.content != untuned.content
    assert again.content == tuned.content
    np.testing.assert_allclose(tuned.answer, untuned.answer, rtol=1e-4)


@pytest.mark.thorough
def test_a_kept_schedule_beats_the_plain_one(database: Path) -> None:
    (content,) = contents(database).values()
    found = msgspec.json.decode(content)
    assert found["record"] is not None
    assert found["seconds"] < 0.95 * found["plain_seconds"]
    assert found["trials"] == 6
    assert str(ROOT).encode() not in content


@pytest.mark.thorough
def test_a_network_is_searched_once(tmp_path: Path) -> None:
    module = module_of(DIGITS, (1, 1, 8, 8))
    first = tune(module, NATIVE, tmp_path, trials_per_task=2, seed=7)
    assert first.tasks >= 3
    assert (first.trials, first.reused) == (2 * first.tasks, 0)
    before = contents(tmp_path)
    assert len(before) == first.tasks
    for trials in (0, 4):
        later = tune(module, NATIVE, tmp_path, trials_per_task=trials)
        assert (later.tasks, later.trials, later.reused) == (first.tasks, 0, first.tasks)
    assert contents(tmp_path) == before

    lost = sorted(tmp_path.rglob("*.json"))[:2]
    lost[0].unlink()
    lost[1].write_bytes(lost[1].read_bytes()[:100])
    partly = tune(module, NATIVE, tmp_path, trials_per_task=1)
    assert (partly.trials, partly.reused) == (2, first.tasks - 2)
    assert contents(tmp_path).keys() == before.keys()


def test_schedules_of_another_target_or_tvm_are_not_used(database: Path, tmp_path: Path) -> None:
    other = next(target for target in TARGETS if target.name != NATIVE.name)
    (tmp_path / "other").mkdir()
    assert schedules(database, other, tmp_path / "other") == 0
    copy = shutil.copytree(database, tmp_path / "copy")
    (path,) = copy.rglob("*.json")
    found = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(found | {"tvm": "0.1"}))
    (tmp_path / "old").mkdir()
    assert schedules(copy, NATIVE, tmp_path / "old") == 0


def test_an_empty_database_changes_nothing(convolution: Path, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    folder.mkdir()
    assert schedules(tmp_path / "missing", NATIVE, folder) == 0
    untuned = compiled(convolution, tmp_path / "untuned", None)
    assert compiled(convolution, tmp_path / "same", folder).content == untuned.content


def test_what_cannot_be_timed_here_is_refused(convolution: Path, tmp_path: Path) -> None:
    module = module_of(convolution, ODD_SHAPE)
    with pytest.raises(StepError, match="cannot be timed on this machine"):
        tune(module, named("riscv64"), tmp_path, trials_per_task=1)
    for trials in (-1, 10**6):
        with pytest.raises(StepError, match="trials are not within"):
            tune(module, NATIVE, tmp_path, trials_per_task=trials)
