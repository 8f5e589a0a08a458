"""What docs/selectors.md says of selectors is so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.domain.attributes import ATTRIBUTES, OF_MODEL, Attribute
from controller.domain.device_groups import check_steady, meaning
from controller.domain.selectors import Selector, parse_selector
from controller.errors import SelectorError

PAGE = (Path(__file__).parents[4] / "docs" / "selectors.md").read_text()
GROUPS = {"cameras": "profile=rpi*", "lab": "stage=lab"}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title: str) -> list[str]:
    return re.findall(r"(?m)^\| (`.*?) \|", section(title))


def test_examples_can_be_read() -> None:
    examples = [text for cell in first_cells("Examples") for text in re.findall("`(.*?)`", cell)]
    commands = re.findall(r'(?m)^    fleet (?:group set|device list).*"(.*)"', PAGE)
    assert len(examples) == 13
    assert len(commands) == 3
    for text in examples + commands:
        assert meaning(parse_selector(text), GROUPS).tree is not None, text


def test_attributes_are_those_of_the_table() -> None:
    def words(what: Attribute) -> str:
        return what.kind if what.steady else f"{what.kind}, changes"

    rows = re.findall(r"(?m)^\| `([a-z_.NAME]+)` \| (.*?) \|", section("Labels and attributes"))
    expected = {name: words(what) for name, what in ATTRIBUTES.items()}
    assert dict(rows) == {**expected, "model.NAME": words(OF_MODEL)}


def steadily(text: str) -> None:
    check_steady(parse_selector(text), GROUPS, "a policy")


def resolved(text: str) -> Selector:
    return meaning(parse_selector(text), GROUPS)


def test_mistakes_are_answered_like_this() -> None:
    block = section("Mistakes").split("```\n")[1].splitlines()
    assert len(block) == 3 * 7
    ways: tuple[Callable[[str], object], ...] = (resolved, steadily)
    for line, shown, caret in zip(block[::3], block[1::3], block[2::3], strict=True):
        way = ways["a policy" in line]
        with pytest.raises(SelectorError) as caught:
            way(shown.strip())
        assert (f"fleet: {caught.value}", *caught.value.shown) == (line, shown, caret)
