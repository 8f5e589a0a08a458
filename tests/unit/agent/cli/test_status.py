"""What `fleet-agent status` says to people."""

from __future__ import annotations

from typing import Any, Final

import pytest

from agent.app.commands import NO_MODEL
from agent.cli.status import policy_text, write_status
from wire.codec import to_builtins
from wire.policy import Objective, PolicySpec, Sharing

DEVICE: Final[dict[str, Any]] = {
    "device": "dev-1",
    "connected": True,
    "outage": "",
    "endpoint": "127.0.0.1:8500",
    "revision": 1,
    "override_s": None,
    "refused": "",
}


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


def shown(capsys: pytest.CaptureFixture[str], **model: Any) -> list[tuple[str, str]]:
    """Return the names and texts of what is printed of a device with one model."""
    one = {**NO_MODEL, "model": "digits", **model}
    write_status(DEVICE | one | {"models": [one]})
    lines = capsys.readouterr().out.splitlines()
    return [(name, text.strip()) for name, _, text in (line.partition("  ") for line in lines)]


def test_what_a_model_is_worth_beside_others_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    spec = PolicySpec(sharing=Sharing(weight=5.0, may_park=True))
    assert ("sharing", "weight 5, may_park true") in shown(capsys, policy=to_builtins(spec))


@pytest.mark.parametrize("spec", [PolicySpec(), PolicySpec(sharing=Sharing())])
def test_the_default_of_sharing_is_not_shown(
    capsys: pytest.CaptureFixture[str], spec: PolicySpec
) -> None:
    assert "sharing" not in dict(shown(capsys, policy=to_builtins(spec)))


def test_a_policy_of_the_device_alone_is_told_from_that_of_the_fleet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ("policy", "adaptive") in shown(capsys)
    own = dict(shown(capsys, own_policy=True))
    assert own["policy"] == "adaptive, of this device's agent.toml"


def test_a_package_is_shown_by_name_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    fields = dict(shown(capsys, release="f" * 64, package="digits:1.2.0"))
    assert fields["package"] == "digits:1.2.0"
