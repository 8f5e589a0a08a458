"""Samples from archives, directories and functions: what is taken, what is refused."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.errors import BuildError, DataError
from packager.plan.further import LABELS
from packager.samples.arrays import SHORT, Bounds
from packager.samples.readers import SampleSource, read_samples, read_shapes
from packager.samples.store import load_inputs, load_labels, sample, save_samples, spread, unit_of
from runtime_adapters.batches import ranks_of
from wire.package.tensors import TensorSpec

SPECS = (TensorSpec(name="input", datatype="FP32", shape=(-1, 2, 3)),)
TWO = (*SPECS, TensorSpec(name="a/b:0", datatype="INT32", shape=(1, 4)))
INPUT = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
TOKENS = np.arange(40, dtype=np.int32).reshape(10, 4)
LABEL = np.arange(10)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def archive(folder: Path, **arrays: Any) -> SampleSource:
    path = folder / "a.npz"
    np.savez(path, **arrays)
    return SampleSource(path)


def directory(folder: Path, **arrays: Any) -> SampleSource:
    path = folder / "arrays"
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return SampleSource(path)


def function(folder: Path, body: str) -> SampleSource:
    path = folder / "own_samples.py"
    path.write_text("import numpy as np\n" + body)
    return SampleSource(path, "own_samples:samples")


@pytest.mark.parametrize("write", [archive, directory])
@pytest.mark.parametrize(
    "names",
    [("input", "label"), ("x", "y"), ("x", "labels"), ("input", "target"), ("x", "targets")],
)
def test_arrays_are_found_by_name_or_by_the_short_aliases(
    tmp_path: Path, scratch: Path, write: Callable[..., SampleSource], names: tuple[str, str]
) -> None:
    found = read_samples(write(tmp_path, **{names[0]: INPUT, names[1]: LABEL}), SPECS, scratch)
    assert np.array_equal(found.inputs["input"], INPUT)
    assert found.labels is not None
    assert np.array_equal(found.labels, LABEL)


@pytest.mark.parametrize("kind", ["archive", "directory", "function"])
def test_labels_may_have_a_name_of_their_own(tmp_path: Path, scratch: Path, kind: str) -> None:
    places = np.arange(30.0).reshape(10, 3)
    if kind == "function":
        source = function(
            tmp_path,
            "def samples():\n"
            "    places = np.arange(30.0).reshape(10, 3)\n"
            f"    whole = np.array({INPUT.tolist()}, np.float32)\n"
            "    for n in range(10):\n"
            "        yield {'input': whole[n:n + 1], 'places': places[n:n + 1]}\n",
        )
    else:
        write = archive if kind == "archive" else directory
        source = write(tmp_path, input=INPUT, places=places)
    found = read_samples(source, SPECS, scratch, named=("places", "absent"))
    assert found.labels is None
    assert [*found.named] == ["places"]
    assert np.array_equal(found.named["places"], places)


def test_labels_with_a_name_of_their_own_are_one_for_each_sample(
    tmp_path: Path, scratch: Path
) -> None:
    source = archive(tmp_path, input=INPUT, places=np.arange(9))
    with pytest.raises(DataError, match="numbers for each of 10 samples are needed"):
        read_samples(source, SPECS, scratch, named=("places",))


def test_several_inputs_may_have_any_name(tmp_path: Path, scratch: Path) -> None:
    path = directory(tmp_path, input=INPUT, **{"a%2Fb%3A0": TOKENS}).path
    found = read_samples(SampleSource(path), TWO, scratch)
    assert np.array_equal(found.inputs["a/b:0"], TOKENS)
    assert found.labels is None


@pytest.mark.parametrize("write", [archive, directory])
@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            {"x": INPUT, "lable": LABEL},
            (
                "'lable', which nothing reads (did you mean label?); rename it or leave it out; "
                "the known names are input, x, label, labels, y, target, targets"
            ),
        ),
        ({"input": INPUT, "x": INPUT}, "has an array 'x', which nothing reads"),
        ({"x": INPUT, "mean": np.zeros(3)}, "has an array 'mean', which nothing reads; rename"),
        ({"x": INPUT, "label": LABEL, "y": LABEL}, "has the labels twice, as label and y; keep"),
    ],
)
def test_a_name_that_nothing_reads_is_refused_with_the_known_ones(
    tmp_path: Path,
    scratch: Path,
    write: Callable[..., SampleSource],
    arrays: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(DataError) as caught:
        read_samples(write(tmp_path, **arrays), SPECS, scratch)
    assert text in str(caught.value)
    assert list(scratch.iterdir()) == [], "nothing is unpacked before the names are known"


def test_the_names_of_arrays_are_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "building.md").read_text()
    assert all(f"`{name}`" in page for name in (SHORT, *LABELS))


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(10): yield {'input': X[i:i+1], 'label': [i]}",
        "return [{'x': X[:7].tolist(), 'y': range(7)}, {'x': X[7:], 'y': [7, 8, 9]}]",
    ],
)
def test_a_function_yields_small_archives(tmp_path: Path, scratch: Path, body: str) -> None:
    values = "X = np.arange(60, dtype=np.float64).reshape(10, 2, 3)\n"
    source = function(tmp_path, f"{values}def samples():\n  {body}")
    found = read_samples(source, SPECS, scratch)
    assert found.inputs["input"].dtype == np.float32
    assert np.array_equal(found.inputs["input"], INPUT)
    assert found.labels is not None
    assert np.array_equal(found.labels, LABEL)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("def samples(): raise ValueError('no\\ndisk')", "failed: ValueError: no disk"),
        (
            "def samples():\n  yield {'x': X}\n  raise OSError('gone')",
            "failed after 1 dicts: OSError: gone",
        ),
        ("def samples(): return None", "failed: TypeError"),
        ("def samples(): return {'x': X}", "yields str, not dicts"),
        ("def samples(): yield X", "yields ndarray, not dicts"),
        ("def samples(): yield {1: X}", "yields dict, not dicts of named"),
        ("def samples(): return []", "yields no samples"),
        ("def samples(): yield {'input': X[0]}", "which is a single sample; the first axis"),
        ("def samples(): yield {'input': X[:0]}", r"yields \[0\] samples in one dict"),
        ("def samples(): yield {'input': X[:3]}", "holds 3 samples"),
        ("def samples(): yield {'other': X}", "has no array 'input', only other"),
        ("def samples(): yield {'input': [[1.0], [1.0, 2.0]]}", "'input' is not an array"),
        (
            "def samples(): yield {'input': X.astype(int)}",
            "'input' is int64, but float32 is needed",
        ),
        ("def samples(): yield {'input': X * np.nan}", "NaN or infinity"),
        ("def samples(): yield {'input': X, 'label': 'cat'}", "labels are <U3"),
        ("def samples(): yield {'input': X, 'label': 3}", r"int64 of shape \[\]"),
        (
            "def samples():\n  yield {'x': X, 'y': range(10)}\n  yield {'x': X}",
            "yields 'y' only in some dicts",
        ),
        (
            "def samples():\n  yield {'x': X}\n  yield {'x': X, 'y': range(10)}",
            "yields 'y' only in some dicts",
        ),
        ("def samples(): yield {'x': X, 'name': 'n'}", "has an array 'name', which nothing"),
        (
            "def samples():\n  yield {'x': X}\n  yield {'x': X, 'names': 'n'}",
            "has an array 'names', which nothing",
        ),
        (
            "def samples():\n  yield {'x': X, 'y': range(10)}\n  yield {'x': X, 'y': np.ones(10)}",
            "'label' changes from int64",
        ),
        ("def samples():\n  while True: yield {'x': X}", "yields over 100 samples"),
    ],
)
def test_a_function_that_fails_is_told_in_one_line(
    tmp_path: Path, scratch: Path, body: str, text: str
) -> None:
    source = function(tmp_path, "X = np.ones((10, 2, 3), np.float32)\n" + body)
    with pytest.raises(DataError, match=text) as caught:
        read_samples(source, SPECS, scratch, bounds=Bounds(max_samples=100))
    assert "\n" not in str(caught.value)


def test_a_function_is_stopped_at_the_bytes_too(tmp_path: Path, scratch: Path) -> None:
    body = "def samples():\n  while True: yield {'x': np.ones((10, 2, 3), np.float32)}"
    with pytest.raises(DataError, match="or 1000 bytes"):
        read_samples(function(tmp_path, body), SPECS, scratch, bounds=Bounds(max_bytes=1000))


def test_a_module_that_cannot_be_imported_is_told(tmp_path: Path, scratch: Path) -> None:
    with pytest.raises(BuildError, match="cannot be imported"):
        read_samples(function(tmp_path, "import no_such_module"), SPECS, scratch)


def test_numbers_are_converted_within_their_kind(tmp_path: Path, scratch: Path) -> None:
    source = archive(tmp_path, input=INPUT.astype(">f8"), **{"a/b:0": TOKENS.astype(np.uint64)})
    found = read_samples(source, TWO, scratch)
    assert found.inputs["input"].dtype == np.float32
    assert np.array_equal(found.inputs["a/b:0"], TOKENS)
    assert found.inputs["a/b:0"].dtype == np.int32


def test_labels_may_be_targets_of_any_shape(tmp_path: Path, scratch: Path) -> None:
    boxes = np.ones((10, 5, 4), np.float32)
    found = read_samples(archive(tmp_path, input=INPUT, label=boxes), SPECS, scratch)
    assert found.labels is not None
    assert found.labels.shape == (10, 5, 4)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"other": INPUT}, "has no array 'input'"),
        ({"input": INPUT.astype(np.uint8)}, "is uint8, but float32 is needed"),
        ({"input": INPUT[:, :1]}, r"shape \[1, 3\], but the model takes \[2, 3\]"),
        ({"input": INPUT.reshape(10, 6)}, r"shape \[6\]"),
        ({"input": INPUT[0]}, "which is a single sample"),
        ({"input": np.float32(1)}, "a single number"),
        ({"input": INPUT[:7]}, "at least 8"),
        ({"input": INPUT[:0]}, "holds 0 samples"),
        ({"input": np.where(INPUT == 5, np.nan, INPUT).astype(np.float32)}, "NaN"),
        ({"input": np.full(INPUT.shape, 1e300)}, "NaN or infinity after the conversion to float32"),
        ({"input": INPUT, "label": LABEL[:9]}, "numbers for each of 10 samples are needed"),
        ({"input": INPUT, "label": LABEL.astype(str)}, "labels are <U21"),
        ({"input": INPUT.astype(object)}, "of plain arrays"),
    ],
)
@pytest.mark.parametrize("write", [archive, directory])
def test_unfit_arrays_are_refused(
    tmp_path: Path,
    scratch: Path,
    write: Callable[..., SampleSource],
    arrays: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(DataError, match=text) as caught:
        read_samples(write(tmp_path, **arrays), SPECS, scratch)
    assert "\n" not in str(caught.value)


def test_integers_out_of_range_are_refused(tmp_path: Path, scratch: Path) -> None:
    tokens = TOKENS.astype(np.int64)
    tokens[3, 1] = 2**31
    with pytest.raises(DataError, match="out of range for int32"):
        read_samples(archive(tmp_path, input=INPUT, **{"a/b:0": tokens}), TWO, scratch)


def test_inputs_must_have_as_many_samples(tmp_path: Path, scratch: Path) -> None:
    with pytest.raises(DataError, match="holds 9 and 10 samples"):
        read_samples(archive(tmp_path, input=INPUT, **{"a/b:0": TOKENS[:9]}), TWO, scratch)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY"])
def test_what_is_no_archive_is_refused(tmp_path: Path, scratch: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not an \.npz archive"):
        read_samples(SampleSource(path), SPECS, scratch)


def test_broken_and_absent_files_are_refused(tmp_path: Path, scratch: Path) -> None:
    source = archive(tmp_path, input=INPUT)
    content = source.path.read_bytes()
    source.path.write_bytes(content[:-100])
    with pytest.raises(DataError, match="not an"):
        read_samples(source, SPECS, scratch)
    source.path.write_bytes(content.replace(INPUT[3].tobytes(), INPUT[4].tobytes()))
    with pytest.raises(DataError, match="not an"):
        read_samples(source, SPECS, scratch)
    with pytest.raises(DataError, match=r"b\.npz cannot be read: No such file"):
        read_samples(SampleSource(tmp_path / "b.npz"), SPECS, scratch)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no array 'input', only none at all"):
        read_samples(SampleSource(tmp_path / "empty"), SPECS, scratch)


def test_a_member_that_is_an_archive_itself_is_refused(tmp_path: Path, scratch: Path) -> None:
    inner = archive(tmp_path, input=INPUT).path.read_bytes()
    outer = tmp_path / "outer.npz"
    with zipfile.ZipFile(outer, "w") as file:
        file.writestr("input.npy", inner)
    with pytest.raises(DataError, match="plain arrays"):
        read_samples(SampleSource(outer), SPECS, scratch)


@pytest.mark.parametrize("write", [archive, directory])
def test_the_size_is_checked_before_anything_is_read(
    tmp_path: Path, scratch: Path, write: Callable[..., SampleSource]
) -> None:
    source = write(tmp_path, input=INPUT)
    read_samples(source, SPECS, scratch, bounds=Bounds(max_bytes=500))
    with pytest.raises(DataError, match="is over 100 bytes"):
        read_samples(source, SPECS, scratch, bounds=Bounds(max_bytes=100))
    with pytest.raises(DataError, match="holds 10 samples, over 9"):
        read_samples(source, SPECS, scratch, bounds=Bounds(max_samples=9))


def test_samples_survive_the_disk(tmp_path: Path, scratch: Path) -> None:
    found = read_samples(archive(tmp_path, x=INPUT, y=LABEL), SPECS, scratch)
    save_samples(tmp_path, found.inputs, found.labels, SPECS)
    assert np.array_equal(load_inputs(tmp_path, SPECS)["input"], INPUT)
    assert np.array_equal(load_inputs(tmp_path, SPECS, role="first")["input"], INPUT[:1])
    labels = load_labels(tmp_path)
    assert labels is not None
    assert np.array_equal(labels, LABEL)


def test_a_part_of_the_samples_is_saved_in_the_order_asked(tmp_path: Path) -> None:
    save_samples(tmp_path, {"input": INPUT}, LABEL, SPECS, indices=np.array([7, 2, 5]))
    inputs = load_inputs(tmp_path, SPECS)
    assert np.array_equal(inputs["input"], INPUT[[7, 2, 5]])
    assert np.array_equal(sample(inputs, 1, {"input": 3})["input"], INPUT[2:3])
    labels = load_labels(tmp_path)
    assert labels is not None
    assert labels.tolist() == [7, 2, 5]


def test_a_model_without_a_batch_axis_takes_whole_calls(tmp_path: Path, scratch: Path) -> None:
    specs = (
        TensorSpec(name="state", datatype="FP32", shape=(2, 1, 4)),
        TensorSpec(name="rate", datatype="INT64", shape=()),
    )
    assert unit_of(specs) == "calls"
    assert unit_of(TWO) == "samples"
    states = np.arange(80, dtype=np.float32).reshape(10, 2, 1, 4)
    found = read_samples(archive(tmp_path, state=states, rate=np.arange(10)), specs, scratch)
    save_samples(tmp_path, found.inputs, None, specs)
    call = sample(load_inputs(tmp_path, specs), 3, ranks_of(specs))
    assert np.array_equal(call["state"], states[3])
    assert call["rate"].shape == ()
    assert call["rate"] == 3
    assert load_labels(tmp_path) is None


def test_calibration_samples_are_spread_over_the_set() -> None:
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, 256) == [0, 1, 2]


WIDE = (TensorSpec(name="line", datatype="FP32", shape=(-1, 3, -1)),)


def lines(width: int, count: int, first: int = 0) -> np.ndarray:
    """Return samples of a width; each holds its own number."""
    return np.stack([np.full((3, width), first + n, np.float32) for n in range(count)])


def test_a_folder_of_archives_may_hold_samples_of_several_shapes(
    tmp_path: Path, scratch: Path
) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    for name, width, count, first in (("b", 4, 9, 20), ("a", 6, 3, 0), ("c", 6, 8, 10)):
        labels = np.arange(first, first + count)
        np.savez(folder / f"{name}.npz", line=lines(width, count, first), label=labels)
    most, least = read_shapes(SampleSource(folder), WIDE, scratch)
    assert most.inputs["line"].shape == (11, 3, 6), "the shape with the most samples is first"
    assert most.inputs["line"][:, 0, 0].tolist() == [0, 1, 2, *range(10, 18)]
    assert least.inputs["line"].shape == (9, 3, 4)
    assert (most.labels is None, least.labels is None) == (False, False)
    assert np.array_equal(least.labels if least.labels is not None else [], np.arange(20, 29))


def test_a_function_may_yield_samples_of_several_shapes_in_turn(
    tmp_path: Path, scratch: Path
) -> None:
    body = (
        "def samples():\n"
        "  for n in range(20):\n"
        "    width = 4 + 2 * (n % 2)\n"
        "    yield {'line': np.full((1, 3, width), n, np.float32), 'label': [n]}"
    )
    first, second = read_shapes(function(tmp_path, body), WIDE, scratch)
    assert first.inputs["line"][:, 0, 0].tolist() == [*range(0, 20, 2)]
    assert second.inputs["line"].shape == (10, 3, 6)
    assert second.labels is not None
    assert second.labels.tolist() == [*range(1, 20, 2)]


def test_a_folder_of_archives_of_one_shape_is_one_set(tmp_path: Path, scratch: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(3):
        np.savez(folder / f"{number}.npz", x=INPUT[number : number + 4])
    (found,) = read_shapes(SampleSource(folder), SPECS, scratch)
    assert np.array_equal(found.inputs["input"], INPUT[[0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]])


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (
            "  for width in range(1, 99): yield {'line': np.zeros((1, 3, width), np.float32)}",
            "samples of over 64 shapes",
        ),
        (
            "  for width in (4, 6): yield {'line': np.zeros((5, 3, width), np.float32)}",
            "holds 5 samples; every input needs the same number, at least 8",
        ),
        (
            "  for w in (4, 6): yield {'line': np.zeros((9, 3, w), np.float32), 'label': [w] * w}",
            "labels",
        ),
    ],
)
def test_samples_of_several_shapes_have_bounds(
    tmp_path: Path, scratch: Path, body: str, fault: str
) -> None:
    with pytest.raises(DataError, match=fault):
        read_shapes(function(tmp_path, "def samples():\n" + body), WIDE, scratch)


def test_where_one_shape_is_needed_several_are_refused(tmp_path: Path, scratch: Path) -> None:
    body = (
        "def samples():\n"
        "  for width in (4, 6): yield {'line': np.zeros((10, 3, width), np.float32)}"
    )
    with pytest.raises(DataError, match=r"several shapes, such as \[\[3, 4\]\] and \[\[3, 6\]\]"):
        read_samples(function(tmp_path, body), WIDE, scratch)
