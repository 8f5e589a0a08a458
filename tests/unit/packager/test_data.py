"""Archives of samples: what is taken, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager import data
from packager.errors import DataError
from wire.manifest import TensorSpec

SPECS = (TensorSpec(name="input", datatype="FP32", shape=(-1, 2, 3)),)
INPUT = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
LABEL = np.arange(10)


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_arrays_are_found_by_name_or_by_the_short_aliases(tmp_path: Path) -> None:
    named = data.read_archive(write(tmp_path / "a.npz", input=INPUT, label=LABEL), SPECS)
    short = data.read_archive(write(tmp_path / "b.npz", x=INPUT, y=LABEL), SPECS)
    for samples in (named, short):
        assert np.array_equal(samples["input"], INPUT)
        assert np.array_equal(samples["label"], LABEL)


def test_double_precision_is_narrowed_within_its_kind(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", input=INPUT.astype(np.float64))
    assert data.read_archive(path, SPECS)["input"].dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"other": INPUT}, "has no array 'input'"),
        ({"input": INPUT.astype(np.uint8)}, "is uint8, the model takes float32"),
        ({"input": INPUT[:, :1]}, r"shape \[1, 3\], the model takes \[2, 3\]"),
        ({"input": INPUT.reshape(10, 6)}, r"shape \[6\]"),
        ({"input": INPUT[:7]}, "at least 8"),
        ({"input": np.where(INPUT == 5, np.nan, INPUT).astype(np.float32)}, "NaN"),
        ({"input": INPUT, "label": LABEL[:9]}, "10 integers are needed"),
        ({"input": INPUT, "label": LABEL.astype(np.float32)}, "10 integers are needed"),
        ({"input": INPUT.astype(object)}, "not an .npz archive of plain arrays"),
    ],
)
def test_unfit_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        data.read_archive(write(tmp_path / "a.npz", **arrays), SPECS)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not an \.npz archive"):
        data.read_archive(path, SPECS)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", input=INPUT)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError):
        data.read_archive(path, SPECS)


def test_samples_survive_the_disk(tmp_path: Path) -> None:
    samples: dict[str, Any] = {"input": INPUT, "label": LABEL}
    data.save_samples(tmp_path, samples)
    assert np.array_equal(data.load_inputs(tmp_path, SPECS)["input"], INPUT)
    assert np.array_equal(data.load_inputs(tmp_path, SPECS, role="first")["input"], INPUT[:1])
    labels = data.load_labels(tmp_path)
    assert labels is not None
    assert np.array_equal(labels, LABEL)


def test_overlap_is_a_share_of_the_samples() -> None:
    assert data.overlap({"input": INPUT}, {"input": INPUT[:3]}) == pytest.approx(0.3)
    assert data.overlap({"input": INPUT}, {"input": INPUT + 1000}) == 0.0


def test_calibration_samples_are_spread_over_the_set() -> None:
    assert data.spread(10, 4) == [0, 2, 5, 7]
    assert data.spread(3, 256) == [0, 1, 2]
