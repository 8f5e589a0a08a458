"""Raw samples become what a model takes, by a declaration that is checked first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import DataError
from packager.judge.choice import resolve_metric
from packager.judge.comparison import compare
from packager.samples import preprocessing
from packager.samples.declarations import MAX_FILE_BYTES, read_preprocessing
from packager.samples.parts import make_parts
from packager.samples.readers import SampleSource
from packager.samples.store import load_inputs, load_labels, sample, save_samples
from runtime_adapters.processing.declarations import check_preprocessing
from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.models import trained
from wire.package.processing import Preprocessing
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

IMAGE = TensorSpec(name="input", datatype="FP32", shape=(-1, 3, 4, 5))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR = """
[input]
source_datatype = "UINT8"
source_layout = "NHWC"
layout = "NCHW"
scale = 0.00392156862745098
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
"""


def declared(**fields: object) -> Preprocessing:
    base = {"source_datatype": "UINT8", "source_layout": "NHWC", "layout": "NCHW"}
    return Preprocessing(**{**base, **fields})  # type: ignore[arg-type]


def test_pixels_are_scaled_normalised_and_moved() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), np.uint8)
    how = declared(scale=1 / 255, mean=MEAN, std=STD)
    check_preprocessing(IMAGE, how)
    found = preprocessing.prepare(raw, IMAGE, how)
    expected = ((raw / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_raw_samples_must_be_follows_from_the_declaration() -> None:
    other = TensorSpec(name="other", datatype="INT64", shape=(1, 7))
    raw = preprocessing.raw_specs((IMAGE, other), {"input": declared()})
    assert raw == (TensorSpec(name="input", datatype="UINT8", shape=(-1, 4, 5, 3)), other)


def test_grey_images_without_channels_get_an_axis_for_them() -> None:
    spec = TensorSpec(name="input", datatype="FP32", shape=(-1, 1, 4, 5))
    how = declared(source_layout="NHW", scale=0.5, mean=(1.0,))
    check_preprocessing(spec, how)
    assert preprocessing.raw_specs((spec,), {"input": how})[0].shape == (-1, 4, 5)
    raw = np.arange(40, dtype=np.uint8).reshape(2, 4, 5)
    assert np.array_equal(preprocessing.prepare(raw, spec, how)[:, 0], raw * 0.5 - 1)


def test_one_value_serves_all_channels_and_no_layout_is_needed() -> None:
    how = declared(source_layout="", layout="", mean=(128.0,), std=(64.0,))
    check_preprocessing(IMAGE, how)
    raw = np.full((2, 3, 4, 5), 192, np.uint8)
    assert (preprocessing.prepare(raw, IMAGE, how) == 1.0).all()


def test_integers_are_moved_but_never_computed() -> None:
    spec = TensorSpec(name="input", datatype="UINT8", shape=(1, 3, 4, 5))
    check_preprocessing(spec, declared())
    raw = np.arange(120, dtype=np.uint8).reshape(2, 4, 5, 3)
    found = preprocessing.prepare(raw, spec, declared())
    assert found.dtype == np.uint8
    assert np.array_equal(found, raw.transpose(0, 3, 1, 2))


@given(st.permutations("HWC"), st.permutations("HWC"))
def test_each_axis_ends_where_its_letter_stands(source: list[str], layout: list[str]) -> None:
    sizes = {"N": 2, "H": 3, "W": 4, "C": 5}
    texts = ["".join(("N", *letters)) for letters in (source, layout)]
    spec = TensorSpec(name="input", datatype="FP32", shape=tuple(sizes[a] for a in texts[1]))
    how = declared(
        source_datatype="FP32", source_layout=texts[0], layout=texts[1], mean=(0, 1, 2, 3, 4)
    )
    check_preprocessing(spec, how)
    raw = np.random.default_rng(0).normal(size=[sizes[a] for a in texts[0]]).astype(np.float32)
    found = preprocessing.prepare(raw, spec, how)
    assert found.shape == spec.shape
    means = np.arange(5, dtype=np.float32).reshape([5 if a == "C" else 1 for a in texts[0]])
    assert np.array_equal(found, np.einsum(f"{texts[0]}->{texts[1]}", raw - means))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"layout": ""}, "or neither"),
        ({"layout": "NCHC"}, "'NCHC' is not a layout"),
        ({"source_layout": "HWCN"}, "'HWCN' is not a layout"),
        ({"source_layout": "nhwc"}, "is not a layout"),
        ({"layout": "NCH", "source_layout": "NHC"}, "has 3 axes, but the input has 4"),
        ({"source_layout": "NHWD"}, "not have the same letters"),
        ({"source_layout": "NHW"}, "has no channels, but the input has 3"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be greater than 0"),
        ({"std": (1e-50,)}, "std must be greater than 0"),
        ({"std": (-1.0,)}, "std must be greater than 0"),
        ({"scale": 0.0}, "scale must not be 0"),
        ({"scale": float("nan")}, "must be finite"),
        ({"mean": (1e300,)}, "must be finite"),
        ({"mean": (0.5, 0.5)}, "mean has 2 values and std has 0, but 3 for each is needed"),
        ({"mean": (1, 2, 3), "std": (1, 2)}, "mean has 3 values and std has 2"),
        ({"mean": (1, 2, 3), "layout": "", "source_layout": ""}, "mean and std have 3 channels"),
        ({"source_datatype": "BYTES"}, "text cannot be preprocessed"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(DeclarationError, match=text) as caught:
        check_preprocessing(IMAGE, declared(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"mean": (1.0,)}, "give fractions"), ({"source_datatype": "INT8"}, "would need a cast")],
)
def test_a_model_of_integers_takes_no_fractions(fields: dict[str, object], text: str) -> None:
    spec = TensorSpec(name="input", datatype="UINT8", shape=(-1, 3, 4, 5))
    with pytest.raises(DeclarationError, match=text):
        check_preprocessing(spec, declared(**fields))


def test_channels_that_only_samples_tell_are_checked_on_them() -> None:
    spec = TensorSpec(name="input", datatype="FP32", shape=(-1, -1, 4, 5))
    how = declared(mean=(1.0, 2.0, 3.0))
    check_preprocessing(spec, how)
    with pytest.raises(DataError, match="3 values for 1 channels"):
        preprocessing.prepare(np.zeros((2, 4, 5, 1), np.uint8), spec, how)


def test_results_that_are_not_finite_are_refused() -> None:
    spec = TensorSpec(name="input", datatype="FP16", shape=(-1, 3, 4, 5))
    how = declared(scale=1000.0)
    check_preprocessing(spec, how)
    with pytest.raises(DataError, match="gives NaN or infinity"):
        preprocessing.prepare(np.full((1, 4, 5, 3), 255, np.uint8), spec, how)


@pytest.mark.parametrize("table", ["input", "x"])
def test_the_file_has_a_table_per_input(tmp_path: Path, table: str) -> None:
    path = tmp_path / "preprocessing.toml"
    path.write_text(CIFAR.replace("[input]", f"[{table}]"))
    found = read_preprocessing(path, (IMAGE,))
    assert found == {"input": declared(scale=1 / 255, mean=MEAN, std=STD)}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        ("[other]\nsource_datatype = 'UINT8'", "has no input 'other', only input"),
        ("[input]\nlayout = 'NCHW'", "missing required field `source_datatype`"),
        ("[input]\nsource_datatype = 'UINT8'\nsdt = [1.0]", "unknown field `sdt`"),
        ("[input]\nsource_datatype = 'uint8'", "Invalid enum value 'uint8'"),
        ("[input]\nsource_datatype = 'UINT8'\nmean = 1.0", r"\$\[\.\.\.\]\.mean"),
        ("[input]\nsource_datatype = 'UINT8'\nstd = [0.0]", "std must be greater than 0"),
        ("scale = 1.0", "Expected `object`"),
        ("[input", "not a preprocessing file"),
        ("[input]\n" + "#" * MAX_FILE_BYTES, "is over"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "preprocessing.toml"
    path.write_text(content)
    if not content:
        assert read_preprocessing(path, (IMAGE,)) == {}
        return
    with pytest.raises(DataError, match=text) as caught:
        read_preprocessing(path, (IMAGE,))
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml cannot be read"):
        read_preprocessing(tmp_path / "none.toml", (IMAGE,))


def test_blocks_give_what_the_whole_gives(tmp_path: Path) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (1500, 64, 64, 3), np.uint8)  # several blocks
    spec = TensorSpec(name="input", datatype="FP32", shape=(-1, 3, 64, 64))
    how = declared(scale=1 / 255, mean=MEAN, std=STD)
    save_samples(tmp_path, {"input": raw}, None, (spec,), preprocessing={"input": how})
    found = load_inputs(tmp_path, (spec,))["input"]
    for index in (0, 681, 682, 683, 1499):
        here = slice(index, index + 1)
        assert np.array_equal(found[here], preprocessing.prepare(raw[here], spec, how))


@pytest.fixture(scope="module")
def cifar() -> Path:
    return trained("cifar10/cifar_resnet20.onnx").parent


def test_from_raw_photographs_to_the_known_accuracy(cifar: Path, tmp_path: Path) -> None:
    spec = TensorSpec(name="input", datatype="FP32", shape=(1, 3, 32, 32))
    logits = TensorSpec(name="logits", datatype="FP32", shape=(1, 10))
    file = tmp_path / "preprocessing.toml"
    file.write_text(CIFAR)
    for name in ("calib512", "eval2000"):  # they also hold by what their images are scaled
        with np.load(cifar / f"{name}.npz") as arrays:
            np.savez(tmp_path / f"{name}.npz", x=arrays["x"], y=arrays["y"])
    made = make_parts(
        {
            "calibration": SampleSource(tmp_path / "calib512.npz"),
            "evaluation": SampleSource(tmp_path / "eval2000.npz"),
        },
        (spec,),
        tmp_path,
        preprocessing=read_preprocessing(file, (spec,)),
    )
    assert made.samples == {"calibration": 256, "tuning": 256, "gate": 2000}
    assert made.labelled
    assert made.overlap == 0.0
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "calibration", "gate", "tuning",
    ]  # fmt: skip
    info = VariantInfo(
        runtime="onnxruntime",
        precision="fp32",
        model_file="cifar_resnet20.onnx",
        inputs=(spec,),
        outputs=(logits,),
        size_bytes=0,
    )
    inputs, labels = load_inputs(tmp_path / "gate", (spec,)), load_labels(tmp_path / "gate")
    session = open_session(cifar, info, Limits(threads=1))
    rows = [session.infer(sample(inputs, index, {spec.name: 4}))["logits"] for index in range(2000)]
    session.close()
    answers = {"logits": np.concatenate(rows)}
    assert resolve_metric("auto", answers, labels) == "top1"
    assert compare(answers, answers, labels, "top1").accuracy.value == 0.8865
    top5 = compare(answers, answers, labels, "top5").accuracy.value
    assert 0.99 < top5 < 1.0
