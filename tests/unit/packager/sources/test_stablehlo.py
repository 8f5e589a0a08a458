"""What a given StableHLO module is taken for, and how what is none is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packager.errors import ModelError
from packager.sources.stablehlo import load, module_bytes
from wire.package.tensors import TensorSpec

DATA = Path(__file__).resolve().parents[3] / "data" / "stablehlo"


def written(folder: Path, content: bytes | str) -> Path:
    path = folder / "model.mlir"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def function(arguments: str, body: str, results: str, *, name: str = "main") -> str:
    return f"module {{ func.func @{name}({arguments}) -> {results} {{\n{body}\n}} }}"


def test_a_jax_export_and_its_text_are_the_same_model() -> None:
    _, exported = load(DATA / "mlp.stablehlo")
    _, text = load(DATA / "mlp.mlir")
    assert exported == text
    assert exported.kind == "stablehlo"
    assert exported.opset == 0
    assert exported.parameters == 8 * 16 + 16 + 16 * 4 + 4 + 3
    assert exported.inputs == (TensorSpec(name="features", datatype="FP32", shape=(1, 8)),)
    assert exported.outputs == (TensorSpec(name="scores", datatype="FP32", shape=(1, 4)),)
    assert {"stablehlo.dot_general", "stablehlo.maximum"} <= set(exported.operators)
    assert not any("_v1" in name or "vhlo" in name for name in exported.operators)


def test_the_clean_copy_is_the_same_each_time_and_tells_no_place(tmp_path: Path) -> None:
    text = (DATA / "mlp.mlir").read_text(encoding="utf-8")
    marked = written(tmp_path, text.replace('loc("features")', 'loc("/home/user/net.py":5:17)'))
    content, facts = load(marked)
    assert facts.inputs[0].name == "input0"
    assert b"/home" not in content
    assert b"/home" in marked.read_bytes()
    assert content == load(marked)[0]
    again, same = load(written(tmp_path, content))
    assert (again, same) == (content, facts)


def test_types_and_names_of_several_tensors(tmp_path: Path) -> None:
    body = (
        "%0 = stablehlo.compare LT, %a, %b : (tensor<1x2xi32>, tensor<1x2xi32>) -> "
        "tensor<1x2xi1>\nreturn %0, %c : tensor<1x2xi1>, tensor<ui8>"
    )
    path = written(
        tmp_path,
        function(
            '%a: tensor<1x2xi32> loc("left"), %b: tensor<1x2xi32> loc("right"), '
            '%c: tensor<ui8> loc("flag")',
            body,
            "(tensor<1x2xi1> {jax.result_info = \"result['less']\"}, "
            'tensor<ui8> {jax.result_info = "result[1]"})',
        ),
    )
    _, facts = load(path)
    assert [(s.name, s.datatype, s.shape) for s in (*facts.inputs, *facts.outputs)] == [
        ("left", "INT32", (1, 2)),
        ("right", "INT32", (1, 2)),
        ("flag", "UINT8", ()),
        ("less", "BOOL", (1, 2)),
        ("result_1", "UINT8", ()),
    ]


GATHER = """
    %0 = "stablehlo.gather"(%table, %ids) <{
      dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 3>
    }> : (tensor<300x3xf32>, tensor<1x1xKIND>) -> tensor<1x3xf32>
    return %0 : tensor<1x3xf32>
"""


@pytest.mark.parametrize("kind", ["i32", "ui8", "i64"])
def test_a_look_up_is_bounded_in_text_too(tmp_path: Path, kind: str) -> None:
    arguments = f"%table: tensor<300x3xf32>, %ids: tensor<1x1x{kind}>"
    body = GATHER.replace("KIND", kind)
    content, facts = load(written(tmp_path, function(arguments, body, "tensor<1x3xf32>")))
    assert b"clamp" in content
    assert "stablehlo.gather" in facts.operators


def test_a_portable_look_up_is_bounded() -> None:
    content, _ = load(DATA / "embedding.mlirbc")
    assert b"clamp_v1" in content
    assert b"clamp" not in (DATA / "embedding.mlirbc").read_bytes()


SCATTER = """
    %one = stablehlo.constant dense<1.0> : tensor<1xf32>
    %fixed = stablehlo.constant dense<2> : tensor<1x1xi32>
    %0 = "stablehlo.scatter"(%x, INDEX, %one) <{
      scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>
    }> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5xf32>, tensor<1x1xi32>, tensor<1xf32>) -> tensor<5xf32>
    return %0 : tensor<5xf32>
"""


def test_a_scatter_is_taken_where_its_indices_are_constant(tmp_path: Path) -> None:
    arguments = "%x: tensor<5xf32>, %i: tensor<1x1xi32>"

    def scattered(index: str) -> Path:
        text = function(arguments, SCATTER.replace("INDEX", index), "tensor<5xf32>")
        return written(tmp_path, text)

    _, facts = load(scattered("%fixed"))
    assert "stablehlo.scatter" in facts.operators
    with pytest.raises(ModelError, match="writes to indices that depend on the inputs"):
        load(scattered("%i"))


IDENTITY = "return %x : tensor<1xf32>"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a StableHLO module"),
        (b"\0\1\2", "not a StableHLO module"),
        (b"import torch", "not a StableHLO module: custom op 'import' is unknown"),
        (b"ML\xefR\xff\xff", "not a StableHLO module"),
        ("module {}", "no function 'main'"),
        (function("%x: tensor<1xf32>", IDENTITY, "tensor<1xf32>", name="f"), "no function 'main'"),
        (function("%x: tensor<?x2xf32>", "return %x : tensor<?x2xf32>", "tensor<?x2xf32>"),
         "'input0' has a shape that is only known at run time; export the model with fixed"),
        (function("%x: tensor<1xbf16>", "return %x : tensor<1xbf16>", "tensor<1xbf16>"),
         "is of type bf16"),
        (function("%x: !stablehlo.token", "return %x : !stablehlo.token", "!stablehlo.token"),
         "which is not a plain tensor"),
        (function("%x: tensor<1xf32>", "return", "()"), "no results"),
        (function("%x: tensor<1xf32>", "%0 = tosa.abs %x : (tensor<1xf32>) -> tensor<1xf32>\n"
                  "return %0 : tensor<1xf32>", "tensor<1xf32>"), "holds tosa.abs"),
        (function('%x: tensor<i32> {jax.global_constant = "_platform_index"}',
                  "return %x : tensor<i32>", "tensor<i32>"), "several platforms"),
    ],
)  # fmt: skip
def test_what_is_no_such_model_is_one_line(
    content: bytes | str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        load(written(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_an_open_batch_is_refused_with_what_would_work() -> None:
    with pytest.raises(ModelError, match="a batch of 1"):
        load(DATA / "open_batch.mlirbc")


@pytest.mark.parametrize("share", [0.2, 0.6, 0.8])
def test_a_truncated_export_is_refused(tmp_path: Path, share: float) -> None:
    content = (DATA / "mlp.stablehlo").read_bytes()
    with pytest.raises(ModelError, match=r"truncated|not a StableHLO module"):
        load(written(tmp_path, content[: int(share * len(content))]))


def test_damaged_bytecode_is_refused_or_harmless(tmp_path: Path) -> None:
    content = module_bytes(DATA / "mlp.stablehlo")
    rng = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[int(rng.integers(4, len(content)))] ^= int(rng.integers(1, 256))
        try:
            load(written(tmp_path, bytes(damaged)))
        except ModelError as exc:
            assert "\n" not in str(exc)  # noqa: PT017 - most of them still are models


def test_a_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path / "none.mlir")
