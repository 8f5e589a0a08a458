"""Every reason and verdict of `adaptive` is a text that a person can read and believe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.replay import VariantList
from agent.replay.run import Step, replay
from agent.replay.trace_file import load_trace, shipped_names
from agent.replay.traces import Trace
from agent.select.decisions import Candidate, apart
from benchmarks.policies.families import Ready, draw
from benchmarks.policies.outcomes import SETS
from wire.codec import from_json
from wire.policy import PolicySpec

TICKS: Final = 300
DRAWS: Final = (
    ("mixed-day", 0), ("mixed-day", 1), ("battery-and-sun", 1), ("request-bursts", 1),
    ("memory-hog", 0), ("throttling-cliff", 0), ("corunner-900s", 1), ("outliers", 1),
)  # fmt: skip
MOST_CHARS: Final = 125
"""Without the name of a variant, which may have 63."""

MOST_DIGITS: Final = 6
NUMBER: Final = r"(\d+(?:\.\d+)?)"
LESS: Final = (
    rf"less accurate: {NUMBER} against {NUMBER}",
    rf"with probability {NUMBER}, {NUMBER} is required",
    rf"would last {NUMBER} h of the required {NUMBER} h",
    rf"held: {NUMBER} of {NUMBER} s",
    rf"keeps {NUMBER} of the quality, {NUMBER} is required",
    rf"{NUMBER} gained, {NUMBER} lost",
)
"""Comparisons whose first number is the lesser one."""

MORE: Final = (
    rf"more work: {NUMBER} of the processor against {NUMBER}",
    rf"needs {NUMBER} MiB with the reserve, {NUMBER} MiB are available",
)
FOR_ALL: Final = ("pinned to ", "held: ", "no variant may serve")
"""Reasons that are the verdict on the others too."""

NO_FAULT: Final = ("less accurate", "more work: ", "no better than ", "not worth a switch")
"""Verdicts on a variant that keeps the objective."""


def faults(text: str, names: frozenset[str]) -> set[str]:
    """Return what is wrong with a reason or a verdict."""
    plain = re.sub("|".join(map(re.escape, sorted(names, key=len, reverse=True))), "", text)
    return {*form_faults(text, names), *number_faults(plain), *comparison_faults(plain)}


def form_faults(text: str, names: frozenset[str]) -> Iterator[str]:
    longest = max((name for name in names if name in text), key=len, default="")
    if len(text) - len(longest) > MOST_CHARS:
        yield "too long"
    if not text or text != text.strip() or text.endswith(".") or "\n" in text:
        yield "its ends"


def number_faults(plain: str) -> Iterator[str]:
    if re.search(r"\b(nan|inf|none|null)\b|\de[+-]?\d", plain, re.IGNORECASE):
        yield "a number that is none"
    for digits in re.findall(r"\d+", re.sub(r"\.\d+", "", plain)):
        if len(digits) > MOST_DIGITS:
            yield "a number of too many digits"
    if "-" in re.sub(r"[a-z]-[a-z]", "", plain):
        yield "a negative number"
    for percent in re.findall(rf"{NUMBER}%", plain):
        if not 0.0 <= float(percent) <= 100.0:
            yield "a percentage that cannot be"


def comparison_faults(plain: str) -> Iterator[str]:
    for pattern in (*LESS, *MORE):
        for found in re.findall(pattern, plain):
            first, second = map(float, found)
            if not (first < second if pattern in LESS else first > second):
                yield "a comparison that compares nothing"
    for turns in re.findall(rf"in {NUMBER} turns", plain):
        if float(turns) <= 0.0:
            yield "turns that never come"


def contradictions(step: Step, variants: tuple[Candidate, ...]) -> Iterator[str]:
    """Yield where the verdicts on the losers contradict the reason for the winner."""
    decision = step.decision
    assert decision is not None
    reason, verdicts = decision.reason, decision.verdicts
    if set(verdicts) != {c.name for c in variants} - {decision.variant}:
        yield "a variant without a verdict"
    if reason in verdicts.values() and not reason.startswith(FOR_ALL):
        yield "one text for winner and loser"
    if reason.startswith("no variant keeps the objective"):
        for text in verdicts.values():
            if text.startswith(NO_FAULT):
                yield "a loser that keeps the objective where none does"


def check(trace: Trace, variants: tuple[Candidate, ...], spec: PolicySpec) -> None:
    names = frozenset(c.name for c in variants)
    found: dict[str, str] = {}
    decided = 0
    for step in replay(trace, variants, spec).steps:
        if step.decision is None:
            continue
        decided += 1
        texts = (step.decision.reason, *step.decision.verdicts.values())
        for text in texts:
            found |= dict.fromkeys(faults(text, names), text)
        told = f"{step.decision.reason} | {step.decision.verdicts}"
        found |= dict.fromkeys(contradictions(step, variants), told)
    assert decided > 10
    assert found == {}


@pytest.mark.few(5)
@pytest.mark.parametrize("variants", sorted(SETS))
@pytest.mark.parametrize("name", shipped_names())
def test_reasons_over_the_shipped_traces(name: str, variants: str) -> None:
    listed = from_json(SETS[variants].read_bytes(), VariantList).variants
    check(load_trace(name), listed, PolicySpec(kind="adaptive"))


@pytest.mark.few(3)
@pytest.mark.parametrize(("family", "seed"), DRAWS, ids=[f"{f}-{s}" for f, s in DRAWS])
def test_reasons_over_the_traces_of_the_judge(family: str, seed: int) -> None:
    drawn = draw(family, seed)
    begun = drawn.trace
    trace = Ready(header=begun.header, ticks=begun.ticks[:TICKS], came=begun.came[:TICKS])
    check(trace, drawn.variants, drawn.spec("adaptive"))


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.integers(0, 4))
def test_two_different_numbers_never_look_equal(a: float, b: float, decimals: int) -> None:
    less, more = sorted((a, b))
    shown = apart(less, more, decimals)
    if less < more:
        assert float(shown[0]) < float(shown[1])
    assert all(
        abs(float(text) - value) <= 1.5 * 10.0**-decimals
        for text, value in zip(shown, (less, more), strict=True)
    )


def test_the_checks_find_what_they_look_for() -> None:
    texts = {
        "500000000.000 lost in 0.0 turns a minute": {
            "a number of too many digits", "turns that never come"
        },
        "more work: 1.00 of the processor against 1.00": {"a comparison that compares nothing"},
        "the battery would last 4.0 h of the required 4.0 h": {
            "a comparison that compares nothing"
        },
        "over the last minutes: 105.0% would be in time": {"a percentage that cannot be"},
        "headroom may reach nan in 10 s": {"a number that is none"},
        "headroom may reach 1e+09 in 10 s": {"a number that is none"},
        "the battery would last -1.0 h of the required 4.0 h": {"a negative number"},
        "it ends with a stop.": {"its ends"},
        "x" * 126: {"too long"},
    }  # fmt: skip
    found = {text: faults(text, frozenset({"v1"})) for text in texts}
    assert found == texts
