from __future__ import annotations

import json

import pytest

from controller.cli.output import write_csv, write_json
from controller.schemas import Token


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(("a", "b"), [("x,y", None), ('"', 0.1)])
    assert capsys.readouterr().out == 'a,b\n"x,y",\n"""",0.1\n'


def test_json_of_one_and_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    token = Token(token="t", uses=1, expires_at_s=2.0)
    write_json(token)
    assert json.loads(capsys.readouterr().out) == {"token": "t", "uses": 1, "expires_at_s": 2.0}
    write_json([token, token])
    assert len(json.loads(capsys.readouterr().out)) == 2
