"""Tiny models of every runtime, so that one suite can ask the same of all adapters.

Rules:
- What a runtime cannot express is a property of its kit, which says why; the suite leaves out what
  follows from it, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime_adapters.protocol import Limits, Session, Tensor, Tensors
from runtime_adapters.tensors import DTYPES
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo

WIDTH = 3
LIMITS = Limits()
ONNX_TYPES: dict[Datatype, int] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
NUMBERS: tuple[Datatype, ...] = tuple(name for name in ONNX_TYPES if name != "BYTES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """One runtime: which types it takes, and how to write a model for it."""

    runtime: str
    form: str = ""
    """Which of a runtime's forms of model this is, where there are several."""

    device: str
    """Where the runtime says that it works."""

    datatypes: tuple[Datatype, ...]
    """Those that its copying model can have."""

    copies: bool = True
    """Whether the copying model really answers with its input, repeated: a null model has no file
    that says what it computes, it is whatever its declaration says."""

    names_operators: bool = True
    """Whether the file names operators, which the runtime may not know. Compiled code has none: the
    compiler refuses them."""

    compiled: bool = False
    """Whether writing a model takes a compiler, which this machine may lack."""

    adds: bool = True
    """Whether the runtime can run `adding`; one with very few operators cannot."""

    shapes_from_values: bool = True
    """Whether a shape may follow from an input's values. Compiled code and a file for one sample
    have every size fixed but the batch; a null model looks at no values."""

    fixed_batch: int = 2
    """A batch that a declaration may fix; a file for one sample takes no other than one."""

    model_file: str
    write: Callable[[Path, onnx.ModelProto], None] = field(repr=False)
    """Write a model, given as ONNX, as this runtime's file."""

    checks_files: bool = True
    """Whether the runtime checks a file before it reads it; else a damaged file may look like a
    model of other tensors."""

    greeting: str = ""
    """What the runtime writes once in a process, whether or not anyone wants to know."""

    distributions: tuple[str, ...] = ()
    """Python packages that make and load it."""

    @property
    def name(self) -> str:
        """The runtime, and which of its forms."""
        return f"{self.runtime}-{self.form}" if self.form else self.runtime

    def missing(self) -> str | None:
        """Say what this machine lacks to make a model and load it, or None."""
        for distribution in self.distributions:
            try:
                version(distribution)
            except PackageNotFoundError:
                return f"{distribution} is not installed"
        if not self.compiled:
            return None
        from tests.contract import compiled_files  # it needs compilers, which may be absent

        return compiled_files.missing(self.runtime)

    def copying(self, directory: Path, datatype: Datatype) -> VariantInfo:
        """Write a model whose output `y` is its input `x` twice, side by side."""
        self.write(directory / self.model_file, copying_onnx(datatype))
        return self.info(
            TensorSpec(name="x", datatype=datatype, shape=(-1, WIDTH)),
            TensorSpec(name="y", datatype=datatype, shape=(-1, 2 * WIDTH)),
        )

    def adding(self, directory: Path) -> VariantInfo:
        """Write a model whose output `y` is `x * x + z`, two batches that must be of one size.

        It has another output `q`, which is `x * x` and is not declared.
        """
        kind, spec = TensorProto.FLOAT, TensorSpec(name="z", datatype="FP32", shape=(-1, WIDTH))
        model = onnx_model(
            [
                helper.make_node("Mul", ["x", "x"], ["q"]),
                helper.make_node("Add", ["q", "z"], ["y"]),
            ],
            inputs=[
                helper.make_tensor_value_info("x", kind, ("n", WIDTH)),
                helper.make_tensor_value_info("z", kind, ("m", WIDTH)),
            ],
            outputs=[
                helper.make_tensor_value_info("q", kind, ("n", WIDTH)),
                helper.make_tensor_value_info("y", kind, ("k", WIDTH)),
            ],
        )
        self.write(directory / self.model_file, model)
        x, y = (msgspec.structs.replace(spec, name=name) for name in "xy")
        return msgspec.structs.replace(self.info(x, y), inputs=(x, spec))

    def reshaping(self, directory: Path) -> VariantInfo:
        """Write a model whose output `y` is `x` in the shape that the input `shape` holds."""
        model = onnx_model(
            [helper.make_node("Reshape", ["x", "shape"], ["y"])],
            inputs=[
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n",)),
                helper.make_tensor_value_info("shape", TensorProto.INT64, (2,)),
            ],
            outputs=[helper.make_tensor_value_info("y", TensorProto.FLOAT, ("a", "b"))],
        )
        self.write(directory / self.model_file, model)
        x = TensorSpec(name="x", datatype="FP32", shape=(-1,))
        shape = TensorSpec(name="shape", datatype="INT64", shape=(2,))
        info = self.info(x, TensorSpec(name="y", datatype="FP32", shape=(-1, -1)))
        return msgspec.structs.replace(info, inputs=(shape, x))

    def info(self, x: TensorSpec, y: TensorSpec, **options: str) -> VariantInfo:
        """Declare a variant of one input and one output."""
        return VariantInfo(
            runtime=self.runtime,
            precision="fp32",
            model_file=self.model_file,
            options=options,
            inputs=(x,),
            outputs=(y,),
            size_bytes=1,
        )


def copying_onnx(datatype: Datatype, *, operator: str = "Concat") -> onnx.ModelProto:
    """Return an ONNX model whose output is its input twice, or one of another operator."""
    kind = ONNX_TYPES[datatype]
    attributes = {"axis": 1} if operator == "Concat" else {}
    return onnx_model(
        [helper.make_node(operator, ["x", "x"], ["y"], **attributes)],
        inputs=[helper.make_tensor_value_info("x", kind, ("n", WIDTH))],
        outputs=[helper.make_tensor_value_info("y", kind, ("n", 2 * WIDTH))],
    )


def onnx_model(
    nodes: list[onnx.NodeProto],
    *,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    """Return an ONNX model of versions that every runtime reads."""
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def values(datatype: Datatype, rows: int, *, seed: int = 0) -> Tensor:
    """Return a batch of small values that every type can hold exactly."""
    numbers = np.random.default_rng(seed).integers(0, 100, (rows, WIDTH))
    if datatype == "BOOL":
        return numbers > 50
    if datatype == "BYTES":
        texts = [f"é{number}".encode() for number in numbers.flat]
        return np.array(texts, dtype=np.object_).reshape(numbers.shape)
    return numbers.astype(DTYPES[datatype])


def batch(rows: int = 2, *, seed: int = 0) -> Tensors:
    """Return a batch for the input `x`."""
    return {"x": values("FP32", rows, seed=seed)}


def expected(kit: Kit, session: Session, inputs: Tensors) -> Tensor:
    """Return the right answer: known where the model copies, else what a fresh call gives."""
    if kit.copies:
        return np.concatenate([inputs["x"]] * 2, axis=1)
    return session.infer(inputs)["y"]


def resident_bytes() -> int:
    """Return the present resident size of this process."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _write_onnx(path: Path, model: onnx.ModelProto) -> None:
    onnx.save(model, str(path))


def _write_ir(path: Path, model: onnx.ModelProto) -> None:
    from runtime_adapters.openvino.library import openvino

    source = path.with_suffix(".source.onnx")
    onnx.save(model, str(source))
    front_end = openvino.frontend.FrontEndManager().load_by_framework("onnx")
    converted = front_end.convert(front_end.load(str(source)))
    openvino.save_model(openvino.Model(converted), str(path), compress_to_fp16=False)
    source.unlink()


def _write_null(path: Path, model: onnx.ModelProto) -> None:
    path.write_text(f'{{"seed": {len(model.graph.node)}}}', encoding="utf-8")


def _write_tflite(path: Path, model: onnx.ModelProto) -> None:
    from tests.contract import litert_files  # it needs LiteRT, which may be absent

    litert_files.write(path, model)


def _write_tflite_of_one(path: Path, model: onnx.ModelProto) -> None:
    from tests.contract import litert_files

    litert_files.write(path, model, batch=1)


def _write_library(path: Path, model: onnx.ModelProto) -> None:
    from tests.contract import compiled_files

    compiled_files.write_library(path, model)


def _write_module(path: Path, model: onnx.ModelProto) -> None:
    from tests.contract import compiled_files

    compiled_files.write_module(path, model)


ONLY_TFLITE_RUNTIME = (
    find_spec("ai_edge_litert") is None and find_spec("tflite_runtime") is not None
)
"""Whether LiteRT's predecessor is what this environment has of it."""

_NOT_CONCATENATED = {"UINT16", "UINT64", "FP64"} | ({"FP16"} if ONLY_TFLITE_RUNTIME else set())
"""The types for which LiteRT's concatenation has no kernel."""

LITERT = Kit(
    runtime="litert",
    device="XNNPACK",
    datatypes=tuple(name for name in NUMBERS if name not in _NOT_CONCATENATED),
    model_file="model.tflite",
    write=_write_tflite,
    checks_files=not ONLY_TFLITE_RUNTIME,
    greeting="INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n",
    distributions=("tflite-runtime" if ONLY_TFLITE_RUNTIME else "ai-edge-litert",),
)

KITS = (
    Kit(
        runtime="onnxruntime",
        device="CPUExecutionProvider",
        datatypes=(*NUMBERS, "BYTES"),
        model_file="model.onnx",
        write=_write_onnx,
    ),
    Kit(
        runtime="openvino",
        device="CPU",
        datatypes=NUMBERS,
        model_file="model.xml",
        write=_write_ir,
    ),
    Kit(
        runtime="null",
        device="null",
        datatypes=NUMBERS,
        copies=False,
        shapes_from_values=False,
        model_file="model.json",
        write=_write_null,
    ),
    LITERT,
    replace(
        LITERT,
        form="of-one",
        shapes_from_values=False,
        fixed_batch=1,
        write=_write_tflite_of_one,
    ),
    Kit(
        runtime="tvm",
        device="CPU",
        datatypes=NUMBERS,
        names_operators=False,
        compiled=True,
        shapes_from_values=False,
        model_file="model.so",
        write=_write_library,
    ),
    Kit(
        runtime="iree",
        device="local-sync",
        datatypes=NUMBERS,
        names_operators=False,
        compiled=True,
        shapes_from_values=False,
        model_file="model.vmfb",
        write=_write_module,
        distributions=("iree-base-compiler", "iree-base-runtime"),
    ),
)


def only(property_: str) -> pytest.MarkDecorator:
    """Return a mark for the kits that have a property, which says why the others do not."""
    kits = [kit for kit in KITS if getattr(kit, property_)]
    return pytest.mark.parametrize("kit", kits, ids=lambda kit: kit.name, indirect=True)
