"""The order of versions."""

from __future__ import annotations

from itertools import pairwise

import pytest

from controller.domain.version_order import order_key

RISING = (
    "0.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0.dev1", "1.0.0-rc1", "1.0.0-rc2", "1.0.0-rc10",
    "1.0.0", "1.0.0.post1", "1.0.1", "1.9", "1.10", "v2",
)  # fmt: skip


def test_versions_rise() -> None:
    keys = [order_key(text) for text in RISING]
    assert None not in keys
    assert all(before < after for before, after in pairwise(keys))  # type: ignore[operator]


@pytest.mark.parametrize(("one", "same"), [("1.2", "1.2.0"), ("1.2+local", "v1.2"), ("0.0", "0")])
def test_these_are_the_same(one: str, same: str) -> None:
    assert order_key(one) == order_key(same)


@pytest.mark.parametrize("text", ["", "latest", "-1", "1.2 3", "1.*", "x1", "1" * 65, "a" * 64])
def test_these_are_no_versions(text: str) -> None:
    assert order_key(text) is None
