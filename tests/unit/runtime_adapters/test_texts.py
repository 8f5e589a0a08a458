"""Texts in files and on the network come back as they were, and nothing else is taken for texts."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_adapters.batches import one_sample
from runtime_adapters.errors import InputError
from runtime_adapters.golden import array_from_npy, load_golden, save_golden
from runtime_adapters.texts import (
    MAX_TEXT_BYTES,
    are_unicode,
    narrowed,
    raw_from_texts,
    texts_from_raw,
    texts_of,
)
from wire.errors import WireFormatError

texts = st.text(st.characters(exclude_categories=["Cs"]))
kept = texts.filter(lambda text: not text.endswith("\0"))
"""NumPy drops NULs at the end of a text."""


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


@given(st.lists(texts, max_size=8))
def test_raw_texts_come_back_as_they_were(values: list[str]) -> None:
    raw = memoryview(raw_from_texts(values))
    assert texts_from_raw("x", raw, len(values)) == values
    assert raw_from_texts([value.encode() for value in values]) == raw


@given(st.binary(max_size=40), st.integers(0, 2**40))
def test_raw_bytes_are_texts_of_that_number_or_an_input_error(raw: bytes, count: int) -> None:
    try:
        found = texts_from_raw("x", memoryview(raw), count)
    except InputError:
        return
    assert len(found) == count
    assert raw_from_texts(found) == raw


def test_a_text_over_the_limit_is_refused_in_bytes_and_not_in_characters() -> None:
    limit = "x" * MAX_TEXT_BYTES
    assert texts_of("x", [limit], (1,))[0] == limit
    for text in (limit + "x", "é" * (MAX_TEXT_BYTES // 2 + 1)):
        with pytest.raises(InputError, match="text 0 is over 1048576 bytes"):
            texts_of("x", [text], (1,))
        with pytest.raises(InputError, match="text 0 is over 1048576 bytes"):
            texts_from_raw("x", memoryview(raw_from_texts([text])), 1)


@given(st.lists(kept, min_size=1, max_size=8))
def test_golden_texts_come_back_and_their_width_changes_no_byte(values: list[str]) -> None:
    array = np.array(values)
    wide = array.astype(f"<U{array.dtype.itemsize // 4 + 7}")
    outputs = {"y": np.zeros((len(values), 2), np.float32)}
    files = save_golden({"x": array}, outputs)
    assert files == save_golden({"x": wide}, outputs)
    found = array_from_npy("input.x.npy", files["input.x.npy"], texts=True)
    assert found.tolist() == values
    sample = one_sample({"x": found}, 0, {"x": 1})["x"]
    assert sample.dtype == np.object_
    assert sample.tolist() == values[:1]


def test_golden_texts_are_read_only_where_texts_belong(tmp_path: Path) -> None:
    content = npy(np.array(["a", "b"]))
    with pytest.raises(WireFormatError, match="does not hold what its header says"):
        array_from_npy("anchors.npy", content)
    (tmp_path / "input.x.npy").write_bytes(content)
    (tmp_path / "output.y.npy").write_bytes(content)
    with pytest.raises(WireFormatError, match=r"output\.y\.npy"):
        load_golden(tmp_path)
    with pytest.raises(InputError, match="golden output 'y' cannot be saved"):
        save_golden({"x": np.array(["a"])}, {"y": np.array(["b"])})


@pytest.mark.parametrize("code", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
def test_golden_texts_that_are_not_unicode_are_refused(code: int) -> None:
    broken = np.array([code, 0x61], np.uint32).view("<U2")
    assert not are_unicode(broken)
    with pytest.raises(WireFormatError, match="not Unicode"):
        array_from_npy("input.x.npy", npy(broken), texts=True)


def test_numbers_are_left_as_they_are() -> None:
    numbers = np.arange(3)
    assert narrowed(numbers) is numbers
