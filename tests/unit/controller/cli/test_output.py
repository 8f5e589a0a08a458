from __future__ import annotations

import json

import pytest

from controller.cli.output import (
    age_text,
    bytes_text,
    cell_text,
    local_time,
    plain_text,
    write_columns,
    write_csv,
    write_fields,
    write_json,
    write_table,
)
from controller.schemas import Token


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
    assert cell_text(value) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**2, "5.0 MiB"),
     (3 * 1024**4, "3072.0 GiB")],
)  # fmt: skip
def test_sizes(size_bytes: int, text: str) -> None:
    assert bytes_text(size_bytes) == text


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


def test_table_without_a_terminal_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("NAME", "N"), [("x" * 200, 1), ("y", None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"NAME{' ' * 196}  N", f"{'x' * 200}  1", f"y{' ' * 199}  -"]


def test_empty_table_has_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    write_columns(("A", "B"), [])
    assert capsys.readouterr().out == "A  B\n"


def test_fields(capsys: pytest.CaptureFixture[str]) -> None:
    write_fields([("a", 1), ("long name", None)])
    assert capsys.readouterr().out == "a          1\nlong name  -\n"


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(("a", "b"), [("x,y", None), ('"', 0.1)])
    assert capsys.readouterr().out == 'a,b\n"x,y",\n"""",0.1\n'


def test_json_of_one_and_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    token = Token(token="t", uses=1, expires_at_s=2.0)
    write_json(token)
    assert json.loads(capsys.readouterr().out) == {"token": "t", "uses": 1, "expires_at_s": 2.0}
    write_json([token, token])
    assert len(json.loads(capsys.readouterr().out)) == 2
