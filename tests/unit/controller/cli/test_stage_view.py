"""Stages as people read them."""

from __future__ import annotations

from controller.cli.stage_view import rules_text, shadow_lines
from controller.domain.gates.states import GateState
from controller.stage_schemas import ShownStageShadow, StageProgress

SHADOW = ShownStageShadow(
    agreement_percent=99.0,
    requests=1000,
    for_s=3600.0,
    share=0.01,
    state=GateState.HOLD,
    reason="412 of 1,000 requests on 7 of 39 devices, 98.7 % agree, at least 99 % must",
    waived=False,
)
STAGE = StageProgress(number=2, target=40, state="waiting_for_shadow", approval=True, shadow=SHADOW)


def test_the_rules_of_a_stage_say_for_what_shadow_it_waits() -> None:
    assert rules_text(STAGE) == "approval; first a shadow: 99 % of 1,000 requests, for 1h"


def test_a_line_tells_how_far_a_shadow_is() -> None:
    assert shadow_lines([STAGE]) == [f"shadow before stage 2: hold; {SHADOW.reason}"]
    SHADOW.waived = True
    (line,) = shadow_lines([STAGE])
    assert line.startswith("shadow before stage 2: begun without it, as approved by hand; 412 of")
