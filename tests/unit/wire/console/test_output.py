from __future__ import annotations

import io
import sys

import pytest

from wire.console.output import write_fields, write_lines, write_table


def test_table_without_a_terminal_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("NAME", "N"), [("x" * 200, 1), ("y", None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"NAME{' ' * 196}  N", f"{'x' * 200}  1", f"y{' ' * 199}  -"]


def test_fields(capsys: pytest.CaptureFixture[str]) -> None:
    write_fields([("a", 1), ("long name", None)])
    assert capsys.readouterr().out == "a          1\nlong name  -\n"


def test_sentences_without_a_terminal_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(["word " * 50])
    assert capsys.readouterr().out == "word " * 50 + "\n"


class Ascii(io.StringIO):
    """An output that can show nothing but ASCII."""

    encoding = "ascii"


def test_what_the_output_lacks_has_a_stand_in_of_its_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", output := Ascii())
    write_table(("N\u00e4me", "C"), [("\u30ab", "71 \u00b0C"), ("\u2026", "y")])
    assert output.getvalue() == "N?me  C\n??    71  C\n~     y\n"
