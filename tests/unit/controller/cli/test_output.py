from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from controller.cli.output import write_csv, write_json, write_plain_json
from controller.schemas import Token


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(("a", "b"), [("x,y", None), ('"', 0.1)])
    assert capsys.readouterr().out == 'a,b\n"x,y",\n"""",0.1\n'


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
    token = Token(token="t", uses=1, expires_at_s=2.0)
    write_json(token)
    assert json.loads(capsys.readouterr().out) == {"token": "t", "uses": 1, "expires_at_s": 2.0}
    write_json([token, token])
    assert len(json.loads(capsys.readouterr().out)) == 2
