"""A stage as a person writes it, on the line and in a file."""

from __future__ import annotations

import pytest

from controller.cli.errors import ArgumentError
from controller.cli.stage_view import rate_text, rules_text
from controller.client.rollout_stages import StageTable, parse_stage, stage_of
from controller.stage_schemas import Rate, Stage, StageProgress


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("1", Stage(count=1)),
        ("250", Stage(count=250)),
        ("50%", Stage(percent=50.0)),
        ("0.5 %", Stage(percent=0.5)),
        ("100%", Stage(percent=100.0)),
        ("x3", Stage(grow=3.0)),
        ("x1.5", Stage(grow=1.5)),
        ("site=lab", Stage(selector="site=lab")),
        ("group:canaries", Stage(selector="group:canaries")),
        ("!(site=lab or x)", Stage(selector="!(site=lab or x)")),
    ],
)
def test_stages(text: str, stage: Stage) -> None:
    assert parse_stage(text) == stage


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "0%", "101%", "%", "half", "1e3", "²", "x", "99999999"]
)
def test_no_stages(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"^--stage: .* is not a number of devices"):
        parse_stage(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("site==", "cannot read the selector at character 7"),
        ("x1", "'x1' is no growth of 1.1 to 1000 times"),
        (StageTable(), " needs a size or a selector"),
        (StageTable(size=1, selector="canary"), " needs a size or a selector"),
        (StageTable(size="site=lab"), r"size: 'site=lab' is not a number of devices"),
        (StageTable(size=1, soak="400d"), "soak must be a time, up to 366d, not '400d'"),
        (StageTable(size=1, gates=["faster"]), "gates: cannot read the gate 'faster'"),
    ],
)
def test_a_fault_names_what_is_wrong(words: str | StageTable, said: str) -> None:
    with pytest.raises(ArgumentError, match=r"^stages\[2\]") as caught:
        stage_of(words, called="stages[2]")
    assert said in caught.value.message
    assert caught.value.remedy


def test_rules_and_rates_are_told_in_a_line() -> None:
    stage = StageProgress(
        number=1, target=5, state="running", selector="site=lab", soak_s=7200.0, approval=True
    )
    assert rules_text(stage) == "site=lab; soaks 2h; approval"
    assert rules_text(StageProgress(number=1, target=5, state="running")) == ""
    assert rate_text(None) == ""
    assert rate_text(Rate(per_minute=10.0)) == "at most 10 a minute"
    endless = Rate(per_minute=10.0, factor=2.0)
    assert rate_text(endless) == "at most 10 a minute, 2 times that after each 10 that succeed"
    grows = Rate(per_minute=10.0, factor=2.0, after=20, max_per_minute=100.0)
    assert rate_text(grows, 40.0) == (
        "at most 10 a minute, 2 times that after each 20 that succeed, up to 100; now 40"
    )
