"""Whatever is wrong with what a user gives: one line, exit code 2, no package, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.package.keys import generate_key
from tests.integration.builds import QUICK, built, contents, digits, refused, write_profile

Fault = Callable[[Path, Path], dict[str, str]]
"""Takes a folder to write to and the one of good inputs; returns the options that it spoils."""

ONE_GIB = 2**30
NOTHING_PASSES = "candidates passed the gates"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good inputs, and a cache that knows them."""
    folder = digits(tmp_path_factory.mktemp("faults"))
    generate_key(folder / "release.key")
    write_profile(folder, "onnxruntime")
    return folder


def command(work: Path, output: Path, spoilt: dict[str, str]) -> list[str]:
    """Return the arguments of a build in which some options are replaced."""
    options = {
        "-p": str(work / "box.toml"),
        "--calibration": str(work / "calibration.npz"),
        "--evaluation": str(work / "evaluation.npz"),
        "--cache": str(work / "cache"),
        "-o": str(output),
        **spoilt,
    }
    model = options.pop("model", str(work / "digits.onnx"))
    return ["build", model, *QUICK, *(text for pair in options.items() for text in pair)]


def changed(work: Path, path: Path, change: Callable[[Any], None]) -> dict[str, str]:
    """Write the digits model after a change."""
    model = onnx.load(str(work / "digits.onnx"))
    change(model)
    path.write_bytes(model.SerializeToString())
    return {"model": str(path)}


def truncated(folder: Path, work: Path) -> dict[str, str]:
    path = folder / "truncated.onnx"
    path.write_bytes((work / "digits.onnx").read_bytes()[:-1000])
    return {"model": str(path)}


def empty_file(folder: Path, _work: Path) -> dict[str, str]:
    (folder / "empty.onnx").touch()
    return {"model": str(folder / "empty.onnx")}


def empty_graph(folder: Path, work: Path) -> dict[str, str]:
    return changed(work, folder / "m.onnx", lambda model: model.graph.ClearField("node"))


def cyclic(folder: Path, work: Path) -> dict[str, str]:
    def bite(model: Any) -> None:
        model.graph.node[2].input[0] = model.graph.node[5].output[0]

    return changed(work, folder / "m.onnx", bite)


def unknown_operator(folder: Path, work: Path) -> dict[str, str]:
    def rename(model: Any) -> None:
        model.graph.node[1].op_type = "Swizzle"

    return changed(work, folder / "m.onnx", rename)


def nan_weights(folder: Path, work: Path) -> dict[str, str]:
    def poison(model: Any) -> None:
        tensor = model.graph.initializer[0]
        values = numpy_helper.to_array(tensor).copy()
        values.flat[7] = np.nan
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return changed(work, folder / "m.onnx", poison)


def infinite_weights(folder: Path, work: Path) -> dict[str, str]:
    def poison(model: Any) -> None:
        tensor = model.graph.initializer[0]
        values = numpy_helper.to_array(tensor).copy()
        values.flat[7] = np.inf
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return changed(work, folder / "m.onnx", poison)


def random_answers(folder: Path, work: Path) -> dict[str, str]:
    def add_noise(model: Any) -> None:
        made = model.graph.node[-1]
        output = made.output[0]
        made.output[0] = "still"
        model.graph.node.extend(
            [
                helper.make_node("RandomNormalLike", ["still"], ["noise"], scale=1e-3),
                helper.make_node("Add", ["still", "noise"], [output]),
            ]
        )

    return changed(work, folder / "m.onnx", add_noise)


def dropout_left_on(folder: Path, work: Path) -> dict[str, str]:
    def train(model: Any) -> None:
        made = model.graph.node[-1]
        output = made.output[0]
        made.output[0] = "whole"
        on = helper.make_tensor("on", TensorProto.BOOL, [], [True])
        share = helper.make_tensor("share", TensorProto.FLOAT, [], [0.5])
        model.graph.initializer.extend([on, share])
        model.graph.node.append(helper.make_node("Dropout", ["whole", "share", "on"], [output]))

    return changed(work, folder / "m.onnx", train)


def missing_external_file(folder: Path, _work: Path) -> dict[str, str]:
    """Two GiB of weights that are declared and nowhere."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[ONE_GIB // 32, 16])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "m.weights"), ("length", str(2 * ONE_GIB))):
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["input", "w"], ["logits"])],
        "large",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ("n", weight.dims[0]))],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("n", 16))],
        [weight],
    )
    (folder / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return {"model": str(folder / "m.onnx")}


def archive_as_model(_folder: Path, work: Path) -> dict[str, str]:
    return {"model": str(work / "evaluation.npz")}


def folder_as_model(_folder: Path, work: Path) -> dict[str, str]:
    return {"model": str(work)}


def no_model(folder: Path, _work: Path) -> dict[str, str]:
    return {"model": str(folder / "no such model.onnx")}


def of_kind(name: str) -> Fault:
    def make(folder: Path, _work: Path) -> dict[str, str]:
        (folder / name).write_bytes(b"\x80\x04 whatever")
        return {"model": str(folder / name)}

    return make


def function(role: str, body: str) -> Fault:
    """Return a fault that names a function of such a body."""

    def make(folder: Path, _work: Path) -> dict[str, str]:
        (folder / "own.py").write_text(f"def own(*given):\n    {body}\n")
        return {role: f"{folder / 'own.py'}:own"}

    return make


def no_function(folder: Path, _work: Path) -> dict[str, str]:
    (folder / "own.py").write_text("x = 1\n")
    return {"--evaluation": f"{folder / 'own.py'}:own"}


def data(role: str, change: Callable[[Any], dict[str, Any]]) -> Fault:
    """Return a fault in the samples of a role."""

    def make(folder: Path, work: Path) -> dict[str, str]:
        with np.load(work / f"{role}.npz") as arrays:
            np.savez(folder / "spoilt.npz", **change(dict(arrays)))
        return {f"--{role}": str(folder / "spoilt.npz")}

    return make


def poisoned(arrays: Any) -> dict[str, Any]:
    values = arrays["input"].copy()
    values[3, 0, 2, 2] = np.nan
    return {"input": values, "label": arrays["label"]}


def unlabelled(folder: Path, work: Path) -> dict[str, str]:
    bare = data("evaluation", lambda arrays: {"input": arrays["input"]})
    return {**bare(folder, work), "--metric": "top1"}


def same_data(_folder: Path, work: Path) -> dict[str, str]:
    return {"--calibration": str(work / "evaluation.npz")}


def overlapping(folder: Path, work: Path) -> dict[str, str]:
    with np.load(work / "evaluation.npz") as arrays:
        np.savez(folder / "overlapping.npz", input=arrays["input"][:100])
    return {"--calibration": str(folder / "overlapping.npz")}


def profile(old: str, new: str) -> Fault:
    def make(folder: Path, work: Path) -> dict[str, str]:
        text = (work / "box.toml").read_text()
        assert old in text
        (folder / "spoilt.toml").write_text(text.replace(old, new))
        return {"-p": str(folder / "spoilt.toml")}

    return make


def declaration(role: str, text: str) -> Fault:
    """Return a fault in a file of pre- or postprocessing."""

    def make(folder: Path, _work: Path) -> dict[str, str]:
        (folder / "how.toml").write_text(text)
        return {f"--{role}": str(folder / "how.toml")}

    return make


def option(name: str, value: str) -> Fault:
    return lambda _folder, _work: {name: value}


def file_as_database(folder: Path, _work: Path) -> dict[str, str]:
    (folder / "how.toml").touch()
    return {"--tuning-database": str(folder / "how.toml")}


def open_key(folder: Path, _work: Path) -> dict[str, str]:
    path = folder / "open.key"
    path.write_bytes(bytes(32))
    path.chmod(0o644)
    return {"--key": str(path)}


def taken(_folder: Path, work: Path) -> dict[str, str]:
    return {"-o": str(work)}


MODELS: list[tuple[Fault, str]] = [
    (truncated, "is truncated"),
    (empty_file, "'empty.onnx' is empty"),
    (empty_graph, "the model's graph is empty"),
    (cyclic, "the model's graph has a cycle: "),
    (unknown_operator, "has an unknown operator, 'Swizzle'"),
    (nan_weights, "holds NaN"),
    (infinite_weights, "holds infinity; use a checkpoint from before the training diverged"),
    (random_answers, "the model answers at random: output 'logits' differs between two runs"),
    (dropout_left_on, "the model answers at random: output 'logits' differs between two runs"),
    (missing_external_file, "'m.weights', at least 2147483648 bytes, cannot be read: No such"),
    (archive_as_model, "is a ZIP archive"),
    (no_model, "no such model.onnx"),
    (folder_as_model, "is a folder; hand in .onnx"),
    (option("model", "a" * 5000 + ":make"), "File name too long"),
    (option("model", "sys:exit"), "there is no file for 'sys:exit'; name a module"),
    (option("model", "/dev/zero"), "'zero' cannot be read: it is not a file"),
    (function("model", "raise SystemExit(0)"), "failed: SystemExit: 0"),
    (
        of_kind("net.pt"),
        "'net.pt' is a PyTorch file, which a build cannot use directly; write a function",
    ),
    (
        of_kind("net.h5"),
        "'net.h5' is a Keras or HDF5 file, which a build cannot use directly; export it",
    ),
    (of_kind("net.pkl"), "a build never unpickles a file; write a function"),
    (of_kind("net.xyz"), "'net.xyz' is a pickle; a build never unpickles a file"),
    (of_kind("net.onnx"), "'net.onnx' is a pickle"),
    (function("model", "raise ValueError('no weights')"), "failed: ValueError: no weights"),
    (function("model", "return 3"), "the function returned a int; return (torch.nn.Module"),
]
DATA: list[tuple[Fault, str]] = [
    (data("calibration", lambda a: {"pixels": a["input"]}), "has no array 'input', only pixels"),
    (data("calibration", lambda a: {"input": a["input"][:, :, :4]}), "has shape [1, 4, 8]"),
    (data("calibration", lambda a: {"input": (a["input"] * 16).astype(np.uint8)}), "is uint8"),
    (data("evaluation", lambda a: {"input": np.repeat(a["input"], 3, 1)}), "has shape [3, 8, 8]"),
    (data("evaluation", poisoned), "holds NaN or infinity"),
    (data("evaluation", lambda a: {"input": a["input"][:5]}), "holds 5 samples"),
    (same_data, "calibration and evaluation are the same data"),
    (overlapping, "evaluation samples are also calibration samples"),
    (function("--evaluation", "raise OSError('no camera')"), "failed: OSError: no camera"),
    (function("--evaluation", "raise SystemExit(0)"), "failed: SystemExit: 0"),
    (no_function, "has no attribute 'own'"),
    (option("--evaluation", ""), "the build has no evaluation data; add --evaluation"),
    (option("--evaluation", "/dev/zero"), "/dev/zero is not a regular file"),
    (option("--evaluation", "no such data.npz"), "cannot be read: No such file"),
]
REQUESTS: list[tuple[Fault, str]] = [
    (profile("cpu_count", "cpus"), "unknown field `cpus`"),
    (profile('"x86_64"', '"x86-64"'), "Invalid enum value 'x86-64'"),
    (profile('["onnxruntime"]', '["onnx-runtime"]'), "no runtime 'onnx-runtime'; use iree, litert"),
    (option("-p", "rpi99"), "there is no profile 'rpi99'"),
    (declaration("preprocessing", "[input]\nmeans = [0.5]\n"), "unknown field `means`"),
    (
        declaration("preprocessing", '[image]\nsource_datatype = "FP32"\n'),
        "the model has no input 'image', only input",
    ),
    (declaration("postprocessing", "[logits]\ntopk = 3\n"), "unknown field `topk`"),
    (
        declaration("postprocessing", "[classes]\ntop_k = 3\n"),
        "the model has no output 'classes', only logits",
    ),
    (declaration("postprocessing", "[logits]\ntop_k = -3\n"), "of 'logits': top_k is -3"),
    (declaration("postprocessing", "[logits]\nsoftmax = true\naxis = 4\n"), "there is no axis 4"),
    (
        declaration("postprocessing", "[logits.quantization]\nscale = [0.5]\n"),
        "of 'logits': FP32 cannot be quantized",
    ),
    (
        declaration("postprocessing", "[logits.suppression]\nscores = 'logits'\n"),
        "of 'logits': boxes must be (batch, box, 4)",
    ),
    (declaration("postprocessing", "[logits"), "how.toml is not a postprocessing file: "),
    (option("--postprocessing", "no such.toml"), "no such.toml cannot be read: No such file"),
    (option("--postprocessing", "/dev/zero"), "/dev/zero is not a regular file"),
    (option("--metric", "f1"), "there is no metric 'f1'; use auto, top1"),
    (option("--metric", "mae"), "metric mae: a label has shape []"),
    (unlabelled, "metric top1: the evaluation data have no labels; add an array `label`"),
    (function("--metric", "raise KeyError('box')"), "failed: KeyError: 'box'"),
    (function("--metric", "raise SystemExit(0)"), "failed: SystemExit: 0"),
    (
        option("--keep", "onnxruntime-int3"),
        "'onnxruntime-int3' cannot be kept, because it is not a candidate",
    ),
    (option("--keep", "openvino-fp16"), "the profile has no runtime openvino"),
    (option("--report", "report.pdf"), "a report cannot be written as 'report.pdf'; use a name"),
    (option("--prune", "0.5"), "only a PyTorch model can be pruned; name a function"),
    (option("--max-size", "1000"), NOTHING_PASSES),
    (option("--max-size", "0"), "a limit of 0 is not above 0"),
    (option("--max-latency", "nan"), "a limit of nan is not above 0"),
    (option("--max-disagreement", "nan"), "disagreement nan is not within 0 to 1"),
    (option("--min-duration-s", "inf"), "inf is more than 3600"),
    (option("--step-memory", "-5"), "-5 is less than 0"),
    (option("--executor", "dask://scheduler"), "there is no executor 'dask://scheduler'"),
    (option("--measurements", "/dev/zero"), "/dev/zero cannot be read: it is not a file"),
    (option("--measurements", "/"), "/ cannot be read: Is a directory"),
    (option("-o", "/proc/none/package"), "/proc/none cannot be written: "),
    (option("-o", "a" * 300), "File name too long"),
    (option("--report", "a" * 300 + ".json"), "File name too long"),
    (option("--cache", "/dev/null"), "the build cache cannot be written: Not a directory"),
    (file_as_database, "how.toml is not a folder; name one with --tuning-database"),
    (open_key, "can be read by others (mode 0644)"),
    (taken, "exists and is not a package"),
]


def check_refused(
    spoil: Fault, text: str, work: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Build with something spoilt; what was there before must be there afterwards."""
    spoilt = spoil(folder, work)
    given = {**files(folder), **files(work)}
    # A gate that nothing passes is an answer, and no fault.
    status = 1 if text == NOTHING_PASSES else 2
    fault = refused(capsys, command(work, folder / "package", spoilt), status=status)
    assert text in fault
    assert not (folder / "package").exists()
    assert {**files(folder), **files(work)} == given


def files(folder: Path) -> dict[str, bytes]:
    return {
        f"{folder.name}/{path}": content
        for path, content in contents(folder).items()
        if not path.startswith("cache/")
    }


@pytest.mark.parametrize(("spoil", "text"), MODELS, ids=[text for _, text in MODELS])
def test_a_model_at_fault(
    spoil: Fault, text: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused(spoil, text, work, tmp_path, capsys)


@pytest.mark.parametrize(("spoil", "text"), DATA, ids=[text for _, text in DATA])
def test_samples_at_fault(
    spoil: Fault, text: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused(spoil, text, work, tmp_path, capsys)


@pytest.mark.parametrize(("spoil", "text"), REQUESTS, ids=[text for _, text in REQUESTS])
def test_a_request_at_fault(
    spoil: Fault, text: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused(spoil, text, work, tmp_path, capsys)


def test_a_failed_build_leaves_the_package_that_it_should_replace(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "package"
    good = [*command(work, output, {}), "--float-only"]
    built(capsys, good)
    before = contents(output)
    spoilt = nan_weights(tmp_path, work)
    refused(capsys, [*command(work, output, spoilt), "--float-only", "--force"])
    assert contents(output) == before
    refused(capsys, good)  # without --force it is not replaced by a good one either
    assert contents(output) == before
