"""Builds of a model with two heads, judged by a metric of each: classes, and a number beside."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from controller.cli import main
from packager.package.directory import open_package
from packager.package.keys import generate_key
from packager.result import BuildResult
from tests.integration.builds import QUICK, built, candidate, proven, refused, write_profile
from wire.codec import from_json
from wire.errors import FleetError
from wire.package.manifest import MANIFEST_FILE

SAMPLES = 400
INT8 = "onnxruntime-int8-reduced"
"""Where a profile has no VNNI, the weights of int8 have seven bits."""


def two_heads(folder: Path) -> Path:
    """Write a model of a class and a number, and its samples.

    The number is the small difference of two large features: eight bits for a feature leave nothing
    of it, while the class follows from their sign.
    """
    features = np.array([[100.0, 100.0], [1.0, 0.0]], np.float32)
    classes = np.array([[1.0, -1.0], [1.0, -1.0]], np.float32)
    number = np.array([[1.0], [-1.0]], np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "features"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "classes"], ["scores"]),
            helper.make_node("MatMul", ["hidden", "number"], ["place"]),
        ],
        "two-heads",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 2))],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("n", 2)),
            helper.make_tensor_value_info("place", TensorProto.FLOAT, ("n", 1)),
        ],
        [
            numpy_helper.from_array(array, name)
            for name, array in (("features", features), ("classes", classes), ("number", number))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "heads.onnx"))
    rng = np.random.default_rng(3)
    for name, count in (("calibration", 64), ("evaluation", SAMPLES)):
        side = rng.choice((-1.0, 1.0), count)
        x = np.stack([side * rng.uniform(0.5, 1.0, count), rng.uniform(-1.0, 1.0, count)], axis=1)
        places = x[:, 1:] + rng.normal(0.0, 0.1, (count, 1))
        np.savez(
            folder / f"{name}.npz",
            x=x.astype(np.float32),
            label=(side < 0).astype(np.int64),
            places=places.astype(np.float32),
        )
    return folder / "heads.onnx"


def command(folder: Path, *more: str, output: str = "package") -> list[str]:
    return [
        "build", str(folder / "heads.onnx"), "-p", str(write_profile(folder, "onnxruntime")),
        "--calibration", str(folder / "calibration.npz"),
        "--evaluation", str(folder / "evaluation.npz"), "--cache", str(folder / "cache"),
        "--name", "heads", "--version", "1", "--repair-trials", "0",
        "-o", str(folder / output), *QUICK, *more,
    ]  # fmt: skip


def without_labels(folder: Path) -> None:
    """Leave only what the main metric needs."""
    for name in ("calibration", "evaluation"):
        with np.load(folder / f"{name}.npz") as arrays:
            kept = {key: arrays[key] for key in ("x", "label")}
        np.savez(folder / f"{name}.npz", **kept)


def kept(result: dict[str, object]) -> set[str]:
    """Return the variants in the package."""
    found = from_json(msgspec.json.encode(result), BuildResult)
    return {c.name for c in found.candidates if c.kept}


def test_a_further_gate_drops_a_variant_that_the_main_metric_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_heads(tmp_path)
    without_labels(tmp_path)
    keep = ("--metric", "top1", "--keep", INT8)
    plain = built(capsys, command(tmp_path, *keep))
    assert INT8 in kept(plain)
    assert all("further" not in (one["accuracy"] or {}) for one in plain["candidates"])

    report = tmp_path / "report.html"
    more = ("--metric", "place=mae,min-retention=0.95", "--report", str(report))
    result = built(capsys, command(tmp_path, *keep, *more, output="judged"))
    assert result["metric"] == "top1"
    int8 = candidate(result, INT8)
    assert int8["accuracy"]["retention"] >= 0.99
    assert int8["accuracy"]["further"][0]["retention"] < 0.95
    assert "retention of place=mae 0." in int8["profiles"]["box"]["reason"]
    assert "< 0.9500 (" in int8["profiles"]["box"]["reason"]
    assert "onnxruntime-fp32" in kept(result)
    assert INT8 not in kept(result)
    assert "place=mae" in report.read_text()

    assert main(["package", "diff", str(tmp_path / "package"), str(tmp_path / "judged")]) == 1
    assert "place=mae" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_package_holds_and_signs_the_figures_of_both_heads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_heads(tmp_path)
    without_labels(tmp_path)
    generate_key(tmp_path / "release.key")
    more = ("--metric", "top1", "--metric", "place=mae", "--key", str(tmp_path / "release.key"))
    built(capsys, command(tmp_path, *more))
    manifest = proven(tmp_path / "package")
    fp32 = next(v.info for v in manifest.variants if v.name == "onnxruntime-fp32")
    assert fp32.accuracy is not None
    (found,) = fp32.accuracy.further or ()
    assert (found.output, found.metric, found.labels) == ("place", "mae", "")
    assert found.retention == pytest.approx(1.0)
    assert found.certainty
    assert found.certainty.samples_needed == 0  # it computes what the reference does
    assert fp32.provenance["metric.further.1"] == "mae,output=place"
    for known in (found.certainty, fp32.accuracy.certainty):
        assert known
        assert known.confidence == pytest.approx(1 - 0.05 / (2 * known.compared), abs=1e-6)

    capsys.readouterr()
    assert main(["package", "show", str(tmp_path / "package")]) == 0
    shown = capsys.readouterr().out
    assert "TOP1" in shown
    assert "place=mae" in shown

    # The signature names the index, and the index names the bytes of the manifest.
    path = tmp_path / "package" / MANIFEST_FILE
    text = path.read_text()
    path.write_text(text.replace('"place"', '"plane"'))
    assert path.read_text() != text
    with pytest.raises(FleetError, match="manifest"):
        open_package(tmp_path / "package")


@pytest.mark.thorough
def test_a_further_metric_reads_labels_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_heads(tmp_path)
    with np.load(tmp_path / "evaluation.npz") as arrays:
        wide = int(abs(arrays["places"] - arrays["x"][:, 1:]).mean() * 1e6) / 1e6
    texts = ("place=mae,labels=places", "scores=agreement", "place=r2,min-retention=0.5")
    further = [word for text in texts for word in ("--metric", text)]
    result = built(capsys, command(tmp_path, "--metric", "scores=top1", *further))
    mae, agreement, r2 = candidate(result, "onnxruntime-fp32")["accuracy"]["further"]
    assert (mae["labels"], mae["retention"]) == ("places", 1.0)
    assert mae["reference"] == mae["value"] == pytest.approx(wide, rel=1e-3)
    assert agreement["value"] == r2["value"] == pytest.approx(1.0)
    worse = candidate(result, INT8)["accuracy"]["further"]
    assert worse[0]["value"] > 2 * wide
    assert worse[1]["value"] >= 0.99
    assert INT8 not in kept(result)

    again = built(capsys, command(tmp_path, "--metric", "scores=top1", *further, "--force"))
    assert again["digest"] == result["digest"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        (("top1", "plaice=mae"), "the model has no output 'plaice'; its outputs are scores, place"),
        (("top1", "place=agreement"), "no output holds class scores; 'place' is [1]"),
        (("top1", "place=mae,labels=spots"), "has no array 'spots', which a further metric reads"),
        (("top1", "scores=top1,labels=label"), "is the main metric already; leave it out"),
        (("top1", "place=rmse,labels=label"), "a label has shape [], or is not finite"),
    ],
)
def test_a_further_metric_that_does_not_fit_ends_the_build_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metrics: tuple[str, ...], fault: str
) -> None:
    two_heads(tmp_path)
    if "places" not in "".join(metrics):
        without_labels(tmp_path)
    if "rmse" in metrics[1]:  # as many numbers as the output, but not its labels: of another size
        with np.load(tmp_path / "evaluation.npz") as arrays:
            x, label = arrays["x"], arrays["label"]
        np.savez(tmp_path / "evaluation.npz", x=x, label=np.stack([label, label], axis=1))
        metrics, fault = ("scores=cosine", metrics[1]), "a label has shape [2], or is not finite"
    said = refused(
        capsys, command(tmp_path, *(word for text in metrics for word in ("--metric", text)))
    )
    assert fault in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.thorough
def test_a_goal_of_a_search_may_be_about_one_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_heads(tmp_path)
    more = (
        "--metric", "top1", "--metric", "place=mae,labels=places,min-retention=0",
        "--search", "exhaustive", "--search-cap", "4",
        "--goal", "place=mae: at most 5% worse", "--goal", "size",
    )  # fmt: skip
    result = built(capsys, command(tmp_path, *more))
    missed = result["search"]["missed"]["box"]
    assert "goal 'place=mae: at most 5% worse' is missed" in missed[INT8]
    assert not candidate(result, INT8)["profiles"]["box"]["kept"]
    best = candidate(result, result["search"]["best"]["box"])
    (place,) = best["accuracy"]["further"]
    assert place["value"] <= 1.05 * place["reference"]
    assert best["name"] not in missed
