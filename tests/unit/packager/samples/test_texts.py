"""Texts as samples: from each source the same, bounded, and never unpickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import DataError
from packager.samples.arrays import Bounds
from packager.samples.readers import SampleSource, read_samples
from packager.samples.split import digests
from packager.samples.store import load_inputs, sample, save_samples
from packager.samples.texts import MAX_CHARACTERS, checked_texts
from packager.samples.yielded import collect
from wire.package.tensors import TensorSpec

SPECS = (TensorSpec(name="x", datatype="BYTES", shape=(-1,)),)
TEXTS = ["a", "über", "", "a\0b", "🙂 x", "a much longer text", "b", "c", "d"]


def read(path: Path, scratch: Path, bounds: Bounds | None = None) -> np.ndarray:
    scratch.mkdir()
    return read_samples(SampleSource(path), SPECS, scratch, bounds=bounds or Bounds()).inputs["x"]


def test_each_source_gives_the_same_texts(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array(TEXTS).astype("<U99"))
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x.npy", np.array(TEXTS).astype(">U40"))
    (tmp_path / "yielded").mkdir()
    pieces = [np.array(TEXTS[:3]), np.array(TEXTS[3:6], np.object_), TEXTS[6:]]
    (collected,) = collect(
        "f", lambda: [{"x": piece} for piece in pieces], SPECS, tmp_path / "yielded", Bounds()
    )
    yielded = collected.inputs["x"]
    found = [
        read(tmp_path / "a.npz", tmp_path / "1"),
        read(tmp_path / "folder", tmp_path / "2"),
        yielded,
    ]
    for array in found:
        assert array.tolist() == TEXTS
        assert array.dtype == np.dtype("<U18")
    save_samples(tmp_path, {"x": found[0]}, None, SPECS, indices=np.array([5, 3]))
    stored = load_inputs(tmp_path, SPECS)
    assert sample(stored, 1, {"x": 1})["x"].tolist() == ["a\0b"]
    assert sample(stored, 1, {"x": 1})["x"].dtype == np.object_


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=8))
def test_the_width_of_an_array_changes_no_digest(texts: list[str]) -> None:
    array = np.array(texts)
    wider = array.astype(f"<U{array.itemsize // 4 + 7}")
    assert digests({"x": array}) == digests({"x": wider})
    same = [a == b for a in array.tolist() for b in array.tolist()]
    found = digests({"x": array})
    assert [a == b for a in found for b in found] == same


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.arange(9), "'x' is int64, but texts are needed"),
        (np.array([b"a"] * 9), "but texts are needed"),
        (np.array(["a", 1], np.object_), "objects that are no texts"),
        (np.array(["a\0"], np.object_), "NUL at its end"),
        (np.array(["\ud800"]), "not Unicode"),
        (np.array(["x" * (MAX_CHARACTERS + 1)]), "a text of over 65536 characters"),
        (np.array(["x" * (MAX_CHARACTERS + 1)], np.object_), "a text of over 65536 characters"),
    ],
)
def test_what_is_no_text_is_refused(values: np.ndarray, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        checked_texts("f", "x", values)


def test_objects_in_a_file_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array(TEXTS, np.object_))
    with pytest.raises(DataError, match=r"is not an \.npz archive"):
        read(tmp_path / "a.npz", tmp_path / "1")


def test_one_long_text_among_many_cannot_fill_the_disk(tmp_path: Path) -> None:
    long = np.array(["x" * 1000])
    pieces = [np.array(TEXTS)] * 10 + [long]
    bounds = Bounds(max_bytes=50_000)
    with pytest.raises(DataError, match="its texts are over 50000 bytes"):
        collect("f", lambda: [{"x": piece} for piece in pieces], SPECS, tmp_path, bounds)
