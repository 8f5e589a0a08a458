from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from controller.cli.errors import ArgumentError
from controller.cli.formats import RECORDS, Form, chosen_form, write_bytes, write_records

KINDS = [("device", "text"), ("values", "number")]


@pytest.mark.parametrize(
    ("name", "as_json", "as_csv", "chosen"),
    [
        ("", False, False, "table"),
        ("", True, False, "json"),
        ("", False, True, "csv"),
        ("csv", False, True, "csv"),
        ("plot", False, False, "plot"),
    ],
)
def test_one_form_is_chosen(name: str, as_json: bool, as_csv: bool, chosen: str) -> None:
    assert chosen_form(name, as_json=as_json, as_csv=as_csv) == Form(chosen)


@pytest.mark.parametrize(
    ("name", "as_json", "as_csv", "said"),
    [
        ("", True, True, "--json and --csv exclude each other"),
        ("plot", True, False, "--json and --format plot exclude each other"),
        ("excel", False, False, "'excel' is not possible here; write table, json, csv or parquet"),
        ("plot", False, False, "'plot' is not possible here"),
    ],
)
def test_a_wrong_form_is_refused(name: str, as_json: bool, as_csv: bool, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        chosen_form(name, as_json=as_json, as_csv=as_csv, possible=RECORDS)
    assert said in str(caught.value)


def test_text_has_no_output_file() -> None:
    with pytest.raises(ArgumentError, match="write > FILE"):
        chosen_form("csv", output=Path("x"))


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "a.png"
    for content in (b"first", b"second"):
        write_bytes(content, Form("png", place))
    assert place.read_bytes() == b"second"
    assert [found.name for found in tmp_path.iterdir()] == ["a.png"]
    with pytest.raises(ArgumentError, match="no such file or directory"):
        write_bytes(b"x", Form("png", tmp_path / "no" / "a.png"))
    with pytest.raises(ArgumentError, match="is a directory"):
        write_bytes(b"x", Form("png", tmp_path))


def test_a_pipe_gets_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(content := io.BytesIO())
    monkeypatch.setattr(sys, "stdout", pipe)
    pipe.write("before ")
    write_bytes(b"\x89PNG", Form("png"))
    assert content.getvalue() == b"before \x89PNG"


def test_records(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("cam-1", 1.5), ("cam-2", None)]
    assert write_records(Form("csv"), rows, KINDS, rows)
    assert capsys.readouterr().out == "device,values\ncam-1,1.5\ncam-2,\n"
    assert write_records(Form("json"), [1], KINDS, rows)
    assert json.loads(capsys.readouterr().out) == [1]
    assert not write_records(Form("table"), rows, KINDS, rows)
    assert capsys.readouterr().out == ""
