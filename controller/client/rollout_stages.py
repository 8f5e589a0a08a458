"""A stage of a rollout as a person writes it: a text, or a table with rules of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from controller.client.errors import ArgumentError
from controller.client.words import (
    WHOLE_PERCENT,
    parse_agreement,
    parse_duration,
    parse_percent,
)
from controller.domain.gates.language import MAX_GATES, parse_gate
from controller.domain.selectors import parse_selector
from controller.domain.stage_shadow import LEAST_IN_ALL
from controller.errors import ControllerError
from controller.stage_schemas import MAX_DEVICES, MAX_REQUESTS, MAX_WAIT_S, Stage, StageShadow

LEAST_GROWTH: Final = 1.1
MOST_GROWTH: Final = 1000.0
MAX_DIGITS: Final = 10
SIZES: Final = 'a number of devices, a share such as "10%", or a growth such as "x3"'
_SIZE_PATTERN: Final = r"[1-9][0-9]*|[0-9]+(\.[0-9]+)? *%|x[1-9][0-9]*(\.[0-9]+)?"
_SELECTOR_PATTERN: Final = r"[^0-9 ].*[=<>:( ].*|[!(].*"
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_GROWTH: Final = re.compile(r"x([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_SELECTOR: Final = re.compile(_SELECTOR_PATTERN)
_SIZE_SCHEMA: Final = MappingProxyType({"pattern": f"^({_SIZE_PATTERN})$"})
_STAGE_SCHEMA: Final = MappingProxyType({"pattern": f"^({_SIZE_PATTERN}|{_SELECTOR_PATTERN})$"})
DURATION_SCHEMA: Final = MappingProxyType(
    {"pattern": r"^(0|([0-9]{1,12}(\.[0-9]{1,6})?(ms|[smhdw])){1,6})$", "examples": ["90s", "2h"]}
)

Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)]
Duration = Annotated[str, msgspec.Meta(extra_json_schema=dict(DURATION_SCHEMA))]
_Share = (
    Annotated[str, msgspec.Meta(extra_json_schema={"pattern": r"^[0-9]+(\.[0-9]+)? *%?$"})]
    | Annotated[float, msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": 100})]
)


class ShadowTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the release must have shown as a shadow before a stage begins."""

    agreement: Annotated[
        _Share, msgspec.Meta(description="How often it answers as the release that serves.")
    ]
    requests: Annotated[
        int,
        msgspec.Meta(
            description="How many it has answered, on all devices.",
            extra_json_schema={"minimum": LEAST_IN_ALL, "maximum": MAX_REQUESTS},
        ),
    ] = LEAST_IN_ALL
    for_: Annotated[Duration, msgspec.Meta(description="For how long it has run.")] = msgspec.field(
        default="0s", name="for"
    )
    share: Annotated[
        _Share, msgspec.Meta(description="The share of the answered requests that it sees.")
    ] = "1%"


class StageTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stage with rules of its own. It has a size or a selector."""

    size: (
        Annotated[str, msgspec.Meta(extra_json_schema=dict(_SIZE_SCHEMA))]
        | Count
        | msgspec.UnsetType
    ) = msgspec.UNSET
    selector: (
        Annotated[Text, msgspec.Meta(description="Which devices it brings to the release.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    soak: (
        Annotated[Duration, msgspec.Meta(description="How long this stage must stay good.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    approval: (
        Annotated[
            bool, msgspec.Meta(description="Whether the next stage waits for approval after it.")
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    gates: Annotated[
        list[Text],
        msgspec.Meta(max_length=MAX_GATES, description="Gates of this stage alone."),
    ] = msgspec.field(default_factory=list)
    shadow: (
        Annotated[ShadowTable, msgspec.Meta(description="What it waits for before it begins.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


StageWords = (
    Annotated[str, msgspec.Meta(extra_json_schema=dict(_STAGE_SCHEMA))] | Count | StageTable
)


def parse_stage(text: str, *, called: str = "--stage") -> Stage:
    """Read a stage.

    Args:
        text: A number of devices such as `10`, a share such as `50%`, a growth such as `x3`, or a
            selector such as `site=lab`. A single word is no selector: `label:canary` is.
        called: What was given, for the text of a fault.

    Returns:
        The stage.

    Raises:
        ArgumentError: None of them, or out of range.
    """
    if _GROWTH.fullmatch(text) is None and _SELECTOR.fullmatch(text) is not None:
        _read(parse_selector, text, called)
        return Stage(selector=text)
    return parse_size(text, called=called)


def parse_size(text: str, *, called: str) -> Stage:
    """Read the size of a stage: a number of devices, a share, or a growth.

    Raises:
        ArgumentError: None of them, or out of range.
    """
    if found := _GROWTH.fullmatch(text):
        if LEAST_GROWTH <= float(found[1]) <= MOST_GROWTH:
            return Stage(grow=float(found[1]))
        raise ArgumentError(
            f"{called}: {text!r} is no growth of {LEAST_GROWTH} to {MOST_GROWTH:g} times",
            remedy="write x3 for three times as many as in the stage before",
        )
    number, is_percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    is_number = _NUMBER.fullmatch(number) is not None
    if is_percent and is_number and 0 < float(number) <= WHOLE_PERCENT:
        return Stage(percent=float(number))
    is_count = number.isascii() and number.isdecimal() and len(number) < MAX_DIGITS
    if not is_percent and is_count and 1 <= int(number) <= MAX_DEVICES:
        return Stage(count=int(number))
    raise ArgumentError(
        f"{called}: {text[:64]!r} is not a number of devices or a percentage",
        remedy="give such as 10, 50%, x3 or site=lab; for one label, label:canary",
    )


def stage_of(words: str | int | StageTable, *, called: str) -> Stage:
    """Read a stage of a file or of an option.

    Args:
        words: The stage.
        called: What was given, for the text of a fault.

    Raises:
        ArgumentError: A value cannot be.
    """
    if not isinstance(words, StageTable):
        return parse_stage(str(words), called=called)
    if (words.size is msgspec.UNSET) == (words.selector is msgspec.UNSET):
        raise ArgumentError(
            f"{called} needs a size or a selector", remedy="give one of the two, as size = 10"
        )
    if isinstance(words.selector, str):
        _read(parse_selector, words.selector, f"{called}.selector")
        stage = Stage(selector=words.selector)
    else:
        stage = parse_size(str(words.size), called=f"{called}.size")
    if isinstance(words.soak, str):
        stage.soak_s = parse_duration(words.soak, option=f"{called}.soak")
        if stage.soak_s > MAX_WAIT_S:
            raise ArgumentError(
                f"{called}.soak must be a time, up to 366d, not {words.soak[:64]!r}",
                remedy="give a shorter time, such as 7d",
            )
    if isinstance(words.approval, bool):
        stage.approval = words.approval
    for gate in words.gates:
        _read(parse_gate, gate, f"{called}.gates")
    stage.gates = words.gates
    if isinstance(words.shadow, ShadowTable):
        stage.shadow = _shadow_of(words.shadow, called=f"{called}.shadow")
    return stage


def _shadow_of(words: ShadowTable, *, called: str) -> StageShadow:
    """Read what a stage needs of a shadow.

    Raises:
        ArgumentError: A value cannot be.
    """
    agreement = parse_agreement(str(words.agreement), option=f"{called}.agreement")
    if not 0 < agreement < WHOLE_PERCENT:
        raise ArgumentError(
            f"{called}.agreement must be above 0 and below 100 %, not {agreement:g} %",
            remedy="give a share, such as 99.9%: no number of requests shows that all agree",
        )
    if not LEAST_IN_ALL <= words.requests <= MAX_REQUESTS:
        raise ArgumentError(
            f"{called}.requests must be {LEAST_IN_ALL} to {MAX_REQUESTS}, not {words.requests}",
            remedy="fewer show nothing: 5 devices must compare 20 each",
        )
    share = parse_percent(str(words.share), option=f"{called}.share")
    if share == 0:
        raise ArgumentError(
            f"{called}.share: a shadow sees more than nothing", remedy="give 1% or so"
        )
    for_s = parse_duration(words.for_, option=f"{called}.for")
    if for_s > MAX_WAIT_S:
        raise ArgumentError(
            f"{called}.for must be a time, up to 366d, not {words.for_[:64]!r}",
            remedy="give a shorter time, such as 1d",
        )
    return StageShadow(
        agreement_percent=agreement,
        requests=words.requests,
        for_s=for_s,
        share=share / WHOLE_PERCENT,
    )


def _read(read: Callable[[str], object], text: str, called: str) -> None:
    """Read an expression, to refuse it before anything is sent.

    Raises:
        ArgumentError: It cannot be read.
    """
    try:
        read(text)
    except ControllerError as exc:
        raise ArgumentError(f"{called}: {exc.message}", remedy=exc.remedy) from exc
