"""Every error of the system: unique stable codes, names that end in Error."""

from __future__ import annotations

import importlib
import pkgutil

from hypothesis import given
from hypothesis import strategies as st

import agent
import controller
import packager
import runtime_adapters
import telemetry
import wire
from wire.errors import GAP, FleetError, shortened


def all_errors() -> list[type[FleetError]]:
    for package in (wire, runtime_adapters, telemetry, agent, packager, controller):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.endswith("errors"):
                importlib.import_module(f"{package.__name__}.{module.name}")
    found: list[type[FleetError]] = []
    todo = [FleetError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo.extend(kind.__subclasses__())
    return [kind for kind in found if not kind.__module__.startswith("test")]


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in all_errors()]
    assert sorted(codes) == sorted(set(codes))


def test_names_end_in_error() -> None:
    assert all(kind.__name__.endswith("Error") for kind in all_errors())


def test_each_says_what_it_means() -> None:
    assert all((kind.__doc__ or "").strip() for kind in all_errors())


@given(text=st.text(max_size=60), max_chars=st.integers(0, 40))
def test_a_text_that_is_too_long_loses_its_middle(text: str, max_chars: int) -> None:
    short = shortened(text, max_chars)
    assert len(short) <= max_chars or short == text
    assert short == text or len(text) > max_chars
    if short != text and max_chars > len(GAP) + 1:
        before, _, after = short.partition(GAP)
        assert text.startswith(before)
        assert text.endswith(after)
        assert after
