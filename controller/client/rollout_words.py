"""The words with which a person writes a rollout: the keys of its file, and what they may be."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from controller.client import rollout_keys
from controller.client.rollout_keys import ControlKeys
from controller.client.rollout_stages import SIZES, Count, Duration, StageWords, Text
from controller.domain.gates.language import MAX_GATES
from controller.domain.start_rate import MAX_PER_MINUTE, MIN_PER_MINUTE
from controller.rollout_schemas import UnfitRule
from controller.stage_schemas import MAX_DEVICES, MAX_STAGES

MAX_CONTROL_PERCENT: Final = 50
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PERCENT: Final = MappingProxyType({"pattern": r"^[0-9]+(\.[0-9]+)? *%?$", "examples": ["10%"]})

PerMinute = Annotated[float, msgspec.Meta(ge=MIN_PER_MINUTE, le=MAX_PER_MINUTE)]


class RolloutFile(ControlKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollout of edgefleet: `fleet rollout create -f FILE` reads it as TOML."""

    release: (
        Annotated[Text, msgspec.Meta(description="The release as NAME:VERSION or its digest.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    selector: Annotated[
        str, msgspec.Meta(description="Which devices it is for; empty for all of them.")
    ] = ""
    stages: Annotated[
        list[StageWords],
        msgspec.Meta(
            min_length=1,
            max_length=MAX_STAGES,
            description="How many devices have the release at the end of each stage, in all: a "
            "number, a share such as 10%, a growth such as x3, or a selector; or a table.",
            extra_json_schema={"default": ["100%"]},
        ),
    ] = msgspec.field(default_factory=lambda: ["100%"])
    spread: Annotated[
        str,
        msgspec.Meta(
            description="A label: each part of the order of starting has of each of its values "
            "about its share."
        ),
    ] = ""
    rate: (
        Annotated[PerMinute, msgspec.Meta(description="How many devices start in a minute.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    rate_factor: (
        Annotated[
            float, msgspec.Meta(ge=1.1, le=10, description="By what the rate grows each time.")
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    rate_after: (
        Annotated[Count, msgspec.Meta(description="After how many successes it grows; 10.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    rate_max: (
        Annotated[PerMinute, msgspec.Meta(description="The rate does not grow further.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    soak: Annotated[
        Duration,
        msgspec.Meta(description="How long a stage must stay good before the next begins."),
    ] = "0s"
    deadline: Annotated[
        Duration,
        msgspec.Meta(
            description="A device that is online for longer without an outcome has failed."
        ),
    ] = "1h"
    offline_limit: Annotated[
        Duration, msgspec.Meta(description="How long a stage waits for devices that are offline.")
    ] = "1d"
    max_in_flight: Annotated[
        Count, msgspec.Meta(description="No device starts while so many install.")
    ] = 100
    max_failures: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=MAX_DEVICES, description="More failed devices than this halt the rollout."
        ),
    ] = 0
    max_failure_percent: (
        Annotated[
            float,
            msgspec.Meta(
                ge=0, le=100, description="A larger share of failed devices halts it, too."
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    min_finished: Annotated[
        Count, msgspec.Meta(description="How many devices must finish before that share counts.")
    ] = 10
    approval: Annotated[
        bool, msgspec.Meta(description="Wait for `fleet rollout approve` between stages.")
    ] = False
    gates: Annotated[
        list[Text],
        msgspec.Meta(
            max_length=MAX_GATES,
            description="What the release may do to what devices measure, such as "
            "p95(inference_latency_ms) <= +10%.",
        ),
    ] = msgspec.field(default_factory=list)
    control: Annotated[
        Annotated[str, msgspec.Meta(extra_json_schema=dict(_PERCENT))]
        | Annotated[float, msgspec.Meta(ge=0, le=50)],
        msgspec.Meta(
            description="With gates: the share of devices that keep the old release to the end, "
            "to compare the others with. 0 for none."
        ),
    ] = "10%"
    shadow_agreement: (
        Annotated[
            Annotated[str, msgspec.Meta(extra_json_schema=dict(_PERCENT))]
            | Annotated[float, msgspec.Meta(gt=0, le=100)],
            msgspec.Meta(
                description="Nothing begins unless the release, as a shadow, answered so many "
                "requests as the one that serves."
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    unfit: Annotated[
        UnfitRule,
        msgspec.Meta(
            description="What becomes of devices that cannot take the release: refuse the rollout, "
            "exclude them from it, or allow them, so that each decides itself."
        ),
    ] = "refuse"


LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "release": "NAME:VERSION or a digest",
        "stages": f"1 to {MAX_STAGES} of: {SIZES}, a selector such as site=lab, or a table",
        "rate": f"a number from {MIN_PER_MINUTE} to {MAX_PER_MINUTE}",
        "rate_factor": "a number, 1.1 to 10",
        "rate_after": f"a whole number, 1 to {MAX_DEVICES}",
        "rate_max": f"a number from {MIN_PER_MINUTE} to {MAX_PER_MINUTE}",
        "max_in_flight": f"a whole number, 1 to {MAX_DEVICES}",
        "max_failures": f"a whole number, 0 to {MAX_DEVICES}",
        "max_failure_percent": "a number, 0 to 100",
        "min_finished": f"a whole number, 1 to {MAX_DEVICES}",
        "gates": f"at most {MAX_GATES} gates",
        "soak": "a time, up to 366d",
        "deadline": "a time above 0, up to 366d",
        "offline_limit": "a time, up to 366d",
        "control": 'a share such as "10%", 0 to 50',
        "shadow_agreement": 'a share such as "99%", above 0',
        "unfit": '"refuse", "exclude" or "allow"',
        **rollout_keys.LIMITS,
    }
)
"""What keys may be whose kind does not tell."""

OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "release": "RELEASE",
        "stages": "--stage",
        "gates": "--gate",
        "windows": "--window",
        "unfit": "--allow-unfit",
    }
)
"""The words on the line for keys that have another name there."""


def option_of(key: str) -> str:
    """Return what a key of the file is called on the line, where items of a list have no number."""
    key = key.partition("[")[0]
    return OPTIONS.get(key, f"--{key.replace('_', '-')}")


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors and other tools."""
    _, parts = msgspec.json.schema_components([RolloutFile], ref_template="#/$defs/{name}")
    whole = parts.pop(RolloutFile.__name__)
    return {"$schema": DIALECT, **whole, "title": "Rollout", "$defs": parts}
