"""What the IREE adapter must do beyond what every adapter must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.plan.targets import TARGETS
from packager.runtimes.iree.models import compile_model
from packager.tools import toolchains
from runtime_adapters.errors import InferenceError, InputError, LoadError
from runtime_adapters.iree.abi import CompiledModel, description_of
from runtime_adapters.protocol import Limits, Session
from runtime_adapters.registry import open_session
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

NATIVE = next(target for target in TARGETS if toolchains.natively_runnable(target))
FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64


class Built(msgspec.Struct, frozen=True):
    """A compiled model and its declaration."""

    folder: Path
    model: CompiledModel
    info: VariantInfo

    def open(self, *, threads: int = 1) -> Session:
        return open_session(self.folder, self.info, Limits(threads=threads))

    def described(self, **changes: Any) -> None:
        changed = msgspec.structs.replace(self.model, **changes)
        self.description.write_bytes(msgspec.json.encode(changed))

    @property
    def description(self) -> Path:
        return description_of(self.folder / self.info.model_file)


def build(folder: Path, nodes: list[onnx.NodeProto], *values: tuple[str, int, list[Any]]) -> Built:
    """Compile a graph; its last value is the output `y`."""
    table = numpy_helper.from_array(np.arange(20, dtype=np.float32).reshape(10, 2), "table")
    infos = [helper.make_tensor_value_info(*value) for value in values]
    graph = helper.make_graph(nodes, "tiny", infos[:-1], infos[-1:], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    path = folder / "model.vmfb"
    made = compile_model(folder / "model.onnx", path, NATIVE)
    info = VariantInfo(
        runtime="iree",
        precision="fp32",
        model_file=path.name,
        inputs=made.inputs,
        outputs=made.outputs,
        size_bytes=path.stat().st_size,
    )
    return Built(folder, made, info)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """`y` is the row of a table that `ids` names, times `x`, plus a `bias` that has no batch."""
    return build(
        tmp_path_factory.mktemp("look-up"),
        [
            helper.make_node("Gather", ["table", "ids"], ["row"]),
            helper.make_node("Mul", ["row", "x"], ["scaled"]),
            helper.make_node("Add", ["scaled", "bias"], ["y"]),
        ],
        ("ids", INT64, ["n"]),
        ("x", FLOAT, ["n", 2]),
        ("bias", FLOAT, [1, 2]),
        ("y", FLOAT, ["n", 2]),
    )


@pytest.fixture
def built(source: Built, tmp_path: Path) -> Built:
    for name in (source.info.model_file, source.description.name):
        (tmp_path / name).write_bytes((source.folder / name).read_bytes())
    return msgspec.structs.replace(source, folder=tmp_path)


def inputs(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    return {
        "ids": rng.integers(-10, 10, rows),
        "x": rng.random((rows, 2)).astype(np.float32),
        "bias": np.array([[1, 2]], np.float32),
    }


def right(given: dict[str, Any]) -> Any:
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    return table[given["ids"]] * given["x"] + given["bias"]


@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_a_batch_is_its_samples_and_what_has_no_batch_goes_with_each(
    built: Built, rows: int
) -> None:
    session = built.open()
    for count in (3, rows, 1):
        given = inputs(count)
        answer = session.infer(given)["y"]
        assert answer.shape == (count, 2)
        np.testing.assert_allclose(answer, right(given), rtol=1e-6)


@pytest.mark.parametrize("wrong", [10, -11, 2**62, -(2**63)])
@pytest.mark.parametrize("place", [0, 2])
def test_an_index_out_of_range_never_reaches_the_code(built: Built, wrong: int, place: int) -> None:
    session = built.open()
    given = inputs(3)
    given["ids"][place] = wrong
    with pytest.raises(InputError, match="'ids' has an index outside the range -10 to 9"):
        session.infer(given)
    np.testing.assert_allclose(session.infer(inputs(2))["y"], right(inputs(2)), rtol=1e-6)


def test_an_output_that_the_code_does_not_give_is_an_error(built: Built) -> None:
    more = (*built.model.outputs, TensorSpec(name="z", datatype="FP32", shape=(-1, 2)))
    built.described(outputs=more)
    with pytest.raises(InferenceError, match="gives 1 outputs, not 2"):
        built.open().infer(inputs(1))


def refused(built: Built) -> str:
    with pytest.raises(LoadError) as caught:
        built.open()
    assert "\n" not in str(caught.value)
    assert str(built.folder) not in str(caught.value)
    return str(caught.value)


def test_a_module_without_its_description_is_refused(built: Built) -> None:
    built.description.unlink()
    assert "its description 'model.json' cannot be read" in refused(built)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b"{" * 100_000])
def test_a_broken_description_is_refused(built: Built, content: bytes) -> None:
    built.description.write_bytes(content)
    assert "its description 'model.json' is broken" in refused(built)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2, but this runtime reads version 1"),
        ({"architecture": "s390x"}, "it is built for s390x"),
        ({"cpu_flags": ("avx1024",)}, "lacks avx1024"),
        ({"ranges": {"z": (0, 1)}}, "limits for an input 'z'"),
        ({"inputs": (TensorSpec(name="ids", datatype="BYTES", shape=(-1,)),)}, "no fixed size"),
        ({"inputs": (TensorSpec(name="ids", datatype="INT8", shape=(1, -1)),)}, "no fixed size"),
        (
            {"inputs": (TensorSpec(name="ids", datatype="INT8", shape=(2**40, 2**40)),)},
            "is over",
        ),
        (
            {"inputs": (TensorSpec(name="x", datatype="FP32", shape=(1,)),) * 300},
            "300 inputs or outputs, but at most 256",
        ),
        ({"inputs": (), "ranges": {}}, "the model has no input 'ids'"),
    ],
)
def test_a_description_of_something_else_is_refused(
    built: Built, changes: dict[str, Any], words: str
) -> None:
    built.described(**changes)
    assert words in refused(built)


def test_a_description_that_the_code_breaks_is_an_error_and_no_foreign_memory(
    built: Built,
) -> None:
    wider = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
    ids, _, bias = built.model.inputs
    built.described(inputs=(ids, wider, bias))
    info = msgspec.structs.replace(built.info, inputs=(ids, wider, bias))
    session = msgspec.structs.replace(built, info=info).open()
    given = inputs(1) | {"x": np.ones((1, 3), np.float32)}
    with pytest.raises(InferenceError, match="iree failed") as caught:
        session.infer(given)
    assert "\n" not in caught.value.message


def test_an_output_of_another_type_is_an_error(built: Built) -> None:
    outputs = (TensorSpec(name="y", datatype="FP64", shape=(-1, 2)),)
    built.described(outputs=outputs)
    info = msgspec.structs.replace(built.info, outputs=outputs)
    session = msgspec.structs.replace(built, info=info).open()
    with pytest.raises(InferenceError, match="it gives 8 bytes"):
        session.infer(inputs(1))


def test_threads_are_those_that_were_asked_for_and_end_with_the_session(built: Built) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    built.open().infer(inputs(1))
    before = count()
    one = built.open()
    assert one.describe().devices == ("local-sync",)
    assert count() == before
    counts = []
    for threads in (2, 5, 2):
        session = built.open(threads=threads)
        assert session.describe().devices == ("local-task",)
        np.testing.assert_allclose(session.infer(inputs(3))["y"], right(inputs(3)), rtol=1e-6)
        counts.append(count() - before)
        session.close()
        assert count() == before
    assert counts[1] - counts[0] == 3
    assert counts[2] == counts[0]


def test_an_output_may_have_a_size_that_only_the_code_knows(tmp_path: Path) -> None:
    nonzero = build(
        tmp_path,
        [
            helper.make_node("NonZero", ["x"], ["found"]),
            helper.make_node("Cast", ["found"], ["y"], to=FLOAT),
        ],
        ("x", FLOAT, [1, 4]),
        ("y", FLOAT, [2, "found"]),
    )
    session = nonzero.open()
    for row in ([0, 1, 0, 1], [0, 0, 0, 1]):
        answer = session.infer({"x": np.array([row], np.float32)})["y"]
        np.testing.assert_array_equal(answer, np.stack(np.nonzero([row])))
