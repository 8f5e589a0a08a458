"""What is said about words of a query that make no sense."""

from __future__ import annotations

import pytest

from telemetry.errors import QueryError
from telemetry.metrics import Kind
from telemetry.server.question import Query, check_attributes, check_statistics


@pytest.mark.parametrize(
    ("kind", "word", "said", "meant"),
    [
        ("sum", "max", "x is a counter and has no statistic 'max'", "it has count, total, rate"),
        ("histogram", "avg", "no statistic 'avg'", "did you mean mean? it has count"),
        ("histogram", "median", "no statistic 'median'", "did you mean p50? it has count"),
        ("histogram", "p101", "no statistic 'p101'", "any from p0 to p100, such as p50, p95 or p9"),
        ("gauge", "median", "no statistic 'median'", "it has count, mean, min, max"),
        ("sum", "totl", "no statistic 'totl'", "did you mean total? it has count"),
    ],
)
def test_a_wrong_statistic_is_told_with_those_there_are(
    kind: Kind, word: str, said: str, meant: str
) -> None:
    with pytest.raises(QueryError) as caught:
        check_statistics("x", kind, (word,))
    assert said in caught.value.message
    assert caught.value.remedy is not None
    assert meant in caught.value.remedy


def test_a_wrong_group_is_told_with_attributes_and_with_what_devices_have() -> None:
    names = frozenset({"site", "profile", "arch", "agent_version"})
    query = Query(metric="x", group_by=("sit",), device_names=names)
    with pytest.raises(QueryError) as caught:
        check_attributes(query, ("variant",))
    assert caught.value.remedy == (
        "did you mean site? it has device, model, release, variant; devices have agent_version, "
        "arch, profile, site"
    )
