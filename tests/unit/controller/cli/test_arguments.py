from __future__ import annotations

import pytest

from controller.cli.arguments import (
    hoist_global_options,
    label_changes,
    parse_bytes,
    parse_duration,
    parse_labels,
    selected,
)
from controller.cli.errors import ArgumentError


@pytest.mark.parametrize("text", ["", "x", "20000w", "\n"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"--soak: .*(not a duration|ten years)"):
        parse_duration(text, option="--soak")


def test_no_selector_is_all_devices() -> None:
    assert selected("") == "all devices"
    assert selected("site=berlin") == "site=berlin"


def test_labels() -> None:
    assert parse_labels(["site=berlin", "url=a=b"]) == {"site": "berlin", "url": "a=b"}


@pytest.mark.parametrize("pairs", [["site"], ["=x"], ["site="], ["a=1", "a=2"]])
def test_no_labels(pairs: list[str]) -> None:
    with pytest.raises(ArgumentError):
        parse_labels(pairs)


def test_labels_change() -> None:
    assert label_changes(["stage-", "site=rome", "stage-"]) == ({"site": "rome"}, ["stage"])
    assert label_changes(["x=y-"]) == ({"x": "y-"}, [])
    assert label_changes(["x-", "x=y"]) == ({"x": "y"}, [])
    with pytest.raises(ArgumentError, match="'bare' is not a label"):
        label_changes(["bare"])


@pytest.mark.parametrize(
    ("given_line", "hoisted"),
    [
        ("device list --home d", "--home d device list"),
        ("device list --url=http://x --json", "--url=http://x device list --json"),
        ("--home d device list", "--home d device list"),
        ("device show --token-file f x --home d", "--token-file f --home d device show x"),
        ("device show -- --home d", "device show -- --home d"),
        ("device list --home", "--home device list"),
        ("", ""),
    ],
)
def test_global_options_stand_anywhere(given_line: str, hoisted: str) -> None:
    assert hoist_global_options(given_line.split()) == hoisted.split()


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("500kB", 500_000), ("1MB", 10**6), ("1.5 MiB", 1_572_864), ("2gb", 2 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, option="--bytes-per-day") == size


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1 parsec", "1e9", "1TB", "9999GB", "0.1", "\uff11MB"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ArgumentError, match="--bytes-per-day"):
        parse_bytes(text, option="--bytes-per-day")
