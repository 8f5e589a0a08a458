"""What a worker tells of its answers, so that feedback can be about them."""

from __future__ import annotations

import numpy as np

from agent.serve.frames import Given
from agent.serve.worker.naming import MOST_SAMPLES, Namer
from runtime_adapters.protocol import Tensors
from tests.unit.wire.package.test_scores import info, output


def scores(*classes: int) -> Tensors:
    return {"y": np.eye(3, dtype=np.float32)[list(classes)]}


def test_an_answer_has_the_class_of_each_sample() -> None:
    namer = Namer(info(output(-1, 3)))
    assert namer.given("a", scores(2, 0)) == Given(id="a", classes=(2, 0))
    assert namer.given("a", scores(*[1] * MOST_SAMPLES)).classes == (1,) * MOST_SAMPLES
    assert namer.given("a", scores(*[1] * (MOST_SAMPLES + 1))).classes == ()
    assert namer.given("a", {}) == Given(id="a")
    assert Namer(info(output(-1, 1))).given("a", scores(1)) == Given(id="a")


def test_ids_of_all_workers_differ() -> None:
    workers = [Namer(info(output(-1, 3))) for _ in range(3)]
    names = {worker.name() for worker in workers for _ in range(100)}
    assert len(names) == 300
    assert max(map(len, names)) < 20
