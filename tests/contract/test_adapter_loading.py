"""What every adapter must do when it loads a model, says what it is and closes it."""

from __future__ import annotations

import gc
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from runtime_adapters import registry
from runtime_adapters.checks import MAX_REASON
from runtime_adapters.errors import LoadError
from runtime_adapters.protocol import Limits, Session, SessionDescription
from tests.contract.adapter_models import (
    LIMITS,
    WIDTH,
    Kit,
    batch,
    copying_onnx,
    expected,
    only,
    resident_bytes,
)
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo


def refused(tmp_path: Path, info: VariantInfo, limits: Limits = LIMITS) -> LoadError:
    """Load what cannot be loaded and check the form of the error."""
    with pytest.raises(LoadError) as caught:
        registry.open_session(tmp_path, info, limits)
    message = caught.value.message
    assert "\n" not in message
    assert len(message) < MAX_REASON + 100
    assert str(tmp_path) not in message
    return caught.value


def test_a_session_says_what_it_is(kit: Kit, session: Session, info: VariantInfo) -> None:
    description = session.describe()
    assert description.runtime == kit.runtime
    assert description.version == registry.get(kit.runtime).version() != ""
    assert description.devices == (kit.device,)
    assert description.fallback == ""
    assert (description.inputs, description.outputs) == (info.inputs, info.outputs)
    encoded = msgspec.json.encode(description)
    assert msgspec.json.decode(encoded, type=SessionDescription) == description


def test_a_missing_model_is_a_load_error(kit: Kit, info: VariantInfo, tmp_path: Path) -> None:
    (tmp_path / kit.model_file).unlink()
    assert "is missing" in refused(tmp_path, info).message


@pytest.mark.parametrize("path", ["../model.onnx", "/etc/passwd", "", "a\\b"])
def test_a_model_outside_the_variant_is_refused(
    info: VariantInfo, tmp_path: Path, path: str
) -> None:
    assert "not a simple relative path" in str(
        refused(tmp_path, msgspec.structs.replace(info, model_file=path))
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_model_is_a_load_error(
    kit: Kit, info: VariantInfo, tmp_path: Path, share: float, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / kit.model_file
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    message = refused(tmp_path, info).message
    assert kit.model_file in message or not kit.checks_files
    assert capfd.readouterr() in {("", ""), ("", kit.greeting)}


def test_garbage_is_a_load_error(
    kit: Kit, info: VariantInfo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / kit.model_file).write_bytes(bytes(range(256)) * 16)
    refused(tmp_path, info)
    assert capfd.readouterr() in {("", ""), ("", kit.greeting)}


@only("names_operators")
def test_an_unknown_operator_is_a_load_error(
    kit: Kit, info: VariantInfo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / kit.model_file
    if kit.runtime in {"onnxruntime", "litert"}:
        kit.write(path, copying_onnx("FP32", operator="Frobnicate"))
    else:
        content = path.read_text(encoding="utf-8")
        path.write_text(
            content.replace('type="Concat"', 'type="Frobnicate"').replace("seed", "Frobnicate"),
            encoding="utf-8",
        )
    assert "Frobnicate" in refused(tmp_path, info).message
    assert capfd.readouterr() in {("", ""), ("", kit.greeting)}


@only("copies")
@pytest.mark.parametrize(
    "change",
    [
        {"inputs": ()},
        {"outputs": ()},
        {"inputs": (TensorSpec(name="z", datatype="FP32", shape=(-1, WIDTH)),)},
        {"inputs": (TensorSpec(name="x", datatype="INT8", shape=(-1, WIDTH)),)},
        {"inputs": (TensorSpec(name="x", datatype="FP32", shape=(-1, WIDTH, 1)),)},
        {"inputs": (TensorSpec(name="x", datatype="FP32", shape=(-1, -1)),)},
        {"inputs": (TensorSpec(name="x", datatype="FP32", shape=(-1, 9)),)},
        {"outputs": (TensorSpec(name="z", datatype="FP32", shape=(-1, 6)),)},
        {"outputs": (TensorSpec(name="y", datatype="FP64", shape=(-1, 6)),)},
        {"outputs": (TensorSpec(name="y", datatype="FP32", shape=(-1, 5)),)},
    ],
)
def test_a_declaration_that_the_model_breaks_is_refused(
    info: VariantInfo, tmp_path: Path, change: dict[str, tuple[TensorSpec, ...]]
) -> None:
    refused(tmp_path, msgspec.structs.replace(info, **change))


def test_a_declaration_may_promise_less_than_the_model(
    kit: Kit, info: VariantInfo, tmp_path: Path
) -> None:
    rows = kit.fixed_batch
    fixed = msgspec.structs.replace(info.inputs[0], shape=(rows, WIDTH))
    wide = msgspec.structs.replace(info.outputs[0], shape=(-1, -1))
    for less in ({"inputs": (fixed,)}, {"outputs": (wide,)}):
        declared = msgspec.structs.replace(info, **less)
        session = registry.open_session(tmp_path, declared, LIMITS)
        inputs = batch(rows)
        np.testing.assert_array_equal(session.infer(inputs)["y"], expected(kit, session, inputs))


def test_an_unknown_option_is_refused(info: VariantInfo, tmp_path: Path) -> None:
    other = msgspec.structs.replace(info, options={"threads_of_gold": "1"})
    assert "threads_of_gold" in str(refused(tmp_path, other))


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_impossible_limits_are_refused(info: VariantInfo, tmp_path: Path, threads: int) -> None:
    assert "threads" in str(refused(tmp_path, info, Limits(threads=threads)))


def test_a_model_is_only_read_wherever_it_lies_and_may_go_once_loaded(
    kit: Kit, info: VariantInfo, tmp_path: Path
) -> None:
    directory = tmp_path / "größe 1.0,a=b"
    directory.mkdir()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for name, content in before.items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o400)
    directory.chmod(0o500)
    session = registry.open_session(directory, info, LIMITS)
    inputs = batch()
    right = expected(kit, session, inputs)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    directory.chmod(0o700)
    shutil.rmtree(directory)
    np.testing.assert_array_equal(session.infer(inputs)["y"], right)


def held(directory: Path) -> tuple[int, int, int]:
    """Count this process's threads, open files, and what it has mapped of a directory."""
    threads, files = (len(list(Path("/proc/self", name).iterdir())) for name in ("task", "fd"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return threads, files, maps.count(str(directory))


@pytest.mark.few(5)
@pytest.mark.parametrize("threads", [1, 2])
def test_closing_gives_back_what_loading_took(
    info: VariantInfo, tmp_path: Path, threads: int
) -> None:
    closed = []

    def once(rows: int) -> None:
        session = registry.open_session(tmp_path, info, Limits(threads=threads))
        session.infer(batch(rows))
        session.close()
        closed.append(session)

    for rows in range(10):
        once(rows)
    gc.collect()  # the sessions of earlier tests
    before, held_before = resident_bytes(), held(tmp_path)
    assert held_before[-1] == 0
    for rows in range(50):
        once(rows % 5)
    assert held(tmp_path) == held_before
    assert resident_bytes() - before < 3 * 1024**2


def test_models_may_be_loaded_and_closed_at_the_same_time(
    kit: Kit, info: VariantInfo, session: Session, tmp_path: Path
) -> None:
    inputs = batch(3)
    right = expected(kit, session, inputs)

    def several(worker: int) -> bool:
        limits = Limits(threads=1 + worker % 2)
        for _ in range(5):
            opened = registry.open_session(tmp_path, info, limits)
            answer = opened.infer(inputs)["y"]
            opened.close()
            if not np.array_equal(answer, right):
                return False
        return True

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert all(pool.map(several, range(4)))
    np.testing.assert_array_equal(session.infer(inputs)["y"], right)
