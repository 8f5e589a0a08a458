"""What a person reads who misspelt a setting."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from wire.settings_faults import plain_fault


class Broker(msgspec.Struct):
    host: str
    port: int = 1883


class Limits(msgspec.Struct):
    memory_bytes: int | None = None


class Near(msgspec.Struct, tag_field="kind", tag="near"):
    path: str


class Far(msgspec.Struct, tag_field="kind", tag="far"):
    url: str


class Settings(msgspec.Struct):
    state_dir: str
    broker: Broker
    ways: tuple[Literal["a", "b"], ...] = ()
    places: tuple[Near | Far, ...] = ()
    serving: Limits | msgspec.UnsetType = msgspec.UNSET


@pytest.mark.parametrize(
    ("fault", "plain"),
    [
        ("Object contains unknown field `nosuch`", "there is no setting nosuch"),
        (
            "Object contains unknown field `prot` - at `$.broker`",
            "there is no setting broker.prot (did you mean broker.port?)",
        ),
        (
            "Object contains unknown field `memory_byte` - at `$.serving`",
            "there is no setting serving.memory_byte (did you mean serving.memory_bytes?)",
        ),
        (
            "not a valid Settings: Object contains unknown field `stat_dir`",
            "there is no setting stat_dir (did you mean state_dir?)",
        ),
        (
            "Object contains unknown field `pat` - at `$.places[1]`",
            "there is no setting places[1].pat (did you mean places[1].path?)",
        ),
        (
            "Invalid enum value 'c' - at `$.ways[1]`",
            "ways[1] must be one of a, b, not 'c'",
        ),
        (
            "Invalid value 'c' - at `$.places[0].kind`",
            "places[0].kind must be one of near, far, not 'c'",
        ),
        ("Object missing required field `state_dir`", "the setting state_dir is missing"),
        (
            "Expected `int`, got `str` - at `$.broker.port`",
            "broker.port must be a whole number, not a text",
        ),
        (
            "Expected `int | null`, got `array` - at `$.serving.memory_bytes`",
            "serving.memory_bytes must be a whole number or nothing, not a list",
        ),
        ("Invalid value (at line 1, column 5)", "Invalid value (at line 1, column 5)"),
    ],
)
def test_a_fault_in_a_file_is_told_in_plain_words(fault: str, plain: str) -> None:
    assert plain_fault(fault, Settings) == plain
