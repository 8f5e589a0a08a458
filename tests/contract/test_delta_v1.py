"""Deltas of version 1, byte for byte.

The files beside this test were made by the first release that has deltas. Devices in the field
apply such deltas for years, and a controller may keep them: what they make must never change.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.simulators.deltas import ARITHMETIC, applied
from wire.delta import layout
from wire.delta.decode import Steps, read_header

HERE = Path(__file__).parent / "delta_v1"


@pytest.mark.parametrize("steps", ARITHMETIC.values(), ids=ARITHMETIC)
def test_a_delta_of_the_first_release_makes_the_same_file(steps: Steps) -> None:
    old, delta, new = ((HERE / name).read_bytes() for name in ("old", "delta", "new"))
    assert applied(old, delta, steps=steps) == new


def test_it_has_segments_of_every_kind_and_elements_of_every_type() -> None:
    segments = read_header(HERE / "delta").segments
    assert {type(segment) for segment in segments} == set(get_args(layout.Segment))
    elements = {s.element for s in segments if isinstance(s, layout.Difference)}
    assert elements == set(get_args(layout.Element))
