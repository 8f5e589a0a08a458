"""The log."""

from __future__ import annotations

import json
import logging
import sys

from controller.app.logs import JsonFormatter


def line(message: str, *args: object, broken: bool = False) -> str:
    exc_info = None
    if broken:
        try:
            raise ValueError("x")
        except ValueError:
            exc_info = sys.exc_info()
    record = logging.LogRecord("controller.x", logging.INFO, "f.py", 1, message, args, exc_info)
    return JsonFormatter().format(record)


def test_one_object_in_each_line() -> None:
    text = line("device %s said %s", "cam-1", 'forged\n{"level": "error"}')
    assert "\n" not in text
    shown = json.loads(text)
    assert (shown["level"], shown["logger"]) == ("info", "controller.x")
    assert shown["message"].startswith("device cam-1 said forged")


def test_a_trace_stays_in_its_line() -> None:
    text = line("it broke", broken=True)
    assert "\n" not in text
    assert "ValueError" in json.loads(text)["trace"]
