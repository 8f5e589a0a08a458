from __future__ import annotations

import pytest

from wire.console.sizes import bytes_of_text, bytes_text
from wire.console.text import age_text, local_time, plain_text, value_text


def test_control_characters_do_not_reach_a_terminal() -> None:
    shown = plain_text("a\x1b[31mb\u202ec\n\u00e9\U0001f600")
    assert shown == "a\ufffd[31mb\ufffdc\ufffd\u00e9\U0001f600"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), ("", "-"), (True, "yes"), (False, "no"), (1.23456789, "1.23457"), (7, "7"),
        ({"b": 1, "a": "x"}, "a=x b=1"), (["x", "y"], "x y"), ("\x07", "\ufffd"),
    ],
)  # fmt: skip
def test_cells(value: object, text: str) -> None:
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**2, "5.0 MiB"),
     (3 * 1024**4, "3072.0 GiB")],
)  # fmt: skip
def test_sizes(size_bytes: int, text: str) -> None:
    assert bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("part_bytes", "whole_bytes", "text"),
    [(512 * 1024, 2 * 1024**2, "0.5 of 2.0 MiB"), (3, 0, "3 of 0 B"), (700, 900, "700 of 900 B"),
     (0, 3 * 1024**3, "0.0 of 3.0 GiB"), (5 * 1024**2, 1024, "5120.0 of 1.0 KiB")],
)  # fmt: skip
def test_a_part_is_shown_in_the_unit_of_the_whole(
    part_bytes: int, whole_bytes: int, text: str
) -> None:
    assert bytes_of_text(part_bytes, whole_bytes) == text


@pytest.mark.parametrize(
    ("at_s", "text"),
    [(None, "never"), (1000, "0s ago"), (1010, "0s ago"), (941, "59s ago"), (880, "2m ago"),
     (1000 - 7200, "2h ago"), (1000 - 3 * 86_400, "3d ago")],
)  # fmt: skip
def test_ages(at_s: float | None, text: str) -> None:
    assert age_text(at_s, 1000) == text


def test_times() -> None:
    assert local_time(None) == "-"
    assert len(local_time(1_700_000_000.5)) == len("2023-11-14 22:13:20")
