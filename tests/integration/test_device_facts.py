"""What is known of many devices at once is what is known of each."""

from __future__ import annotations

import random

import pytest

from controller.domain.selectors import parse_selector
from controller.store import device_facts
from controller.store.database import Database
from controller.store.model_tables import DesiredModelRow
from tests.simulators.stored_fleet import add_device, add_release, add_told

MODELS = ("digits", "faces", "words")


def test_devices_are_of_one_kind_if_and_only_if_all_that_is_known_of_them_is_the_same(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    expected = {}
    with database.transaction() as session:
        digests = {
            (model, version): add_release(session, f"{at}{version}" * 32, version, model).digest
            for at, model in enumerate(MODELS)
            for version in ("1", "2")
        }
        for number in range(60):
            row = add_device(session, f"d{number:02}")
            row.profile = {"name": chance.choice(["small", "größer"])}
            row.runtimes = chance.choice([None, ["onnxruntime"]])
            row.greeted = chance.random() < 0.8
            row.desired_form = chance.choice([1, 2])
            releases, models = set(), set()
            for model in MODELS:
                if chance.random() < 0.4:
                    digest = digests[model, chance.choice("12")]
                    add_told(session, row, digest, model)
                    releases.add(digest)
                    models.add(model)
                if chance.random() < 0.4:
                    removed = chance.random() < 0.5
                    session.add(DesiredModelRow(device=row.id, model=model, removed=removed))
                    (models.discard if removed else models.add)(model)
            alike = str(row.profile), str(row.runtimes), row.greeted, row.desired_form
            expected[row.id] = (*alike, frozenset(releases), frozenset(models))
    names = list(expected)
    with database.reading() as session:
        facts = device_facts.of_selector(session, parse_selector(""))
        in_batches = device_facts.kinds_of_devices(session, names[:50])
        monkeypatch.setattr(device_facts, "MANY", 10)
        at_once = device_facts.kinds_of_devices(session, names[:50])
    assert [fact.id for fact in facts] == names
    assert in_batches == at_once == {fact.id: fact.kind for fact in facts[:50]}
    assert {fact.id: fact.kind[2:] for fact in facts} == {
        name: said[2:] for name, said in expected.items()
    }
    for one in facts:
        for other in facts:
            same = expected[one.id] == expected[other.id]
            assert (one.kind == other.kind) is same
