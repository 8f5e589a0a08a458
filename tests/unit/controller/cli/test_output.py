from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest

from controller.cli.output import write_csv, write_json, write_plain_json
from controller.enrolment_schemas import Token


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(("a", "b"), [("x,y", None), ('"', 0.1)])
    assert capsys.readouterr().out == 'a,b\n"x,y",\n"""",0.1\n'


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM(1+1)*cmd|' /C calc'!A0", "'@SUM(1+1)*cmd|' /C calc'!A0"),
        ('+"x"', '"\'+""x"""'),
        ("\t=1", '"\'\t=1"'),
        ("\r\n", '"\'\r\n"'),
        ("＝1", "'＝1"),  # noqa: RUF001 - spreadsheets take it for =
        ("-5", "-5"),
        ("+1.5e-3", "+1.5e-3"),
        ("-5+cmd", "'-5+cmd"),
        ("a;=1", '"a;=1"'),
        (-5, "-5"),
        (-0.5, "-0.5"),
        (None, '""'),
    ],
)
def test_no_cell_is_a_formula_and_numbers_stay_numbers(
    capsys: pytest.CaptureFixture[str], value: object, cell: str
) -> None:
    write_csv(("a",), [(value,)])
    out = capsys.readouterr().out
    assert out == f"a\n{cell}\n"
    if not isinstance(value, str) or cell.strip('"').startswith("'"):
        return
    assert list(csv.reader(io.StringIO(out)))[1] == [value]


@pytest.mark.parametrize("write", [write_json, write_plain_json])
def test_json_has_no_characters_that_a_terminal_obeys(
    write: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = {"a": "\x1b[2J\x9b2J\x7f\u202eabc\u2028\U000e0041 zu hei\u00df \U0001f600"}
    write(hostile)
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "zu hei\u00df \U0001f600" in shown
    assert json.loads(shown) == hostile


def test_json_of_one_and_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    token = Token(id="i", token="t", uses=1, expires_at_s=2.0)
    write_json(token)
    shown = {"id": "i", "token": "t", "uses": 1, "expires_at_s": 2.0}
    assert json.loads(capsys.readouterr().out) == shown
    write_json([token, token])
    assert len(json.loads(capsys.readouterr().out)) == 2
