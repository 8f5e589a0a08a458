"""What `fleet-agent status` says of the policy."""

from __future__ import annotations

import pytest

from agent.cli.status import policy_text
from wire.codec import to_builtins
from wire.policy import Objective, PolicySpec


@pytest.mark.parametrize(
    ("objective", "text"),
    [
        (Objective(), "adaptive (deadline_probability 0.95, battery_lasts_s 14400)"),
        (
            Objective(deadline_ms=50.0, battery_until="18:00"),
            "adaptive (deadline_ms 50, deadline_probability 0.95, battery_until 18:00)",
        ),
        (
            Objective(min_retention=0.9, battery_lasts_s=0.0),
            "adaptive (min_retention 0.9, deadline_probability 0.95)",
        ),
    ],
)
def test_the_limits_that_a_policy_keeps_are_said(objective: Objective, text: str) -> None:
    spec = PolicySpec(kind="adaptive", objective=objective)
    assert policy_text(to_builtins(spec)) == text


def test_a_policy_without_an_objective_has_none() -> None:
    assert policy_text(to_builtins(PolicySpec(kind="rules"))) == "rules"
    assert policy_text(to_builtins(PolicySpec())) == "adaptive"
