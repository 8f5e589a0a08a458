"""The telemetry of a request, which is made of its record: names, values and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from agent.serve.answered import Answered, Outcome, record
from agent.serve.frames import Seen
from tests.simulators.answers import answered

LABELS = {"variant": "a", "release": "digits:1"}
BUSY = LABELS | {"code": "agent.worker.busy"}
REQUEST = ("inference_requests_total", 1.0, LABELS)
COMPUTE = ("worker_compute_seconds_total", 0.02, LABELS)
RUN = ("inference_runs_total", 1.0, LABELS)
OBSERVED = [
    ("inference_latency_ms", 30.0, LABELS),
    ("inference_queue_s", 0.005, LABELS),
    ("inference_runtime_s", 0.02, LABELS),
]
ALONE = ("inference_batch_requests", 1.0, LABELS)


class Heard:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.figures: list[tuple[str, float, dict[str, str]]] = []
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        self.figures.append((metric, value, dict(attributes)))

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        self.figures.append((metric, amount, dict(attributes)))

    def request(
        self,
        attributes: Mapping[str, str],
        added: Iterable[tuple[str, float]],
        observed: Iterable[tuple[str, float]] = (),
    ) -> None:
        self.figures += [(name, value, dict(attributes)) for name, value in (*added, *observed)]

    def event(self, kind: str, reason: str, data: Mapping[str, Any]) -> None:
        self.events.append((kind, reason, dict(data)))


@pytest.mark.parametrize(
    ("told", "figures"),
    [
        (answered(queue_s=0.005), [REQUEST, RUN, COMPUTE, *OBSERVED, ALONE]),
        (
            msgspec.structs.replace(answered(queue_s=0.005), joined=4),
            [
                REQUEST,
                ("inference_runs_total", 0.25, LABELS),
                COMPUTE,
                ("inference_joined_total", 1.0, LABELS),
                *OBSERVED,
                ("inference_batch_requests", 4.0, LABELS),
            ],
        ),
        (
            answered(outcome=Outcome.INVALID, status=413),
            [REQUEST, ("inference_invalid_total", 1.0, LABELS | {"code": "413"})],
        ),
        (
            answered(outcome=Outcome.FAILED, status=500),
            [REQUEST, ("inference_failures_total", 1.0, LABELS | {"code": "500"})],
        ),
        (
            msgspec.structs.replace(answered(outcome=Outcome.REFUSED), code="agent.worker.busy"),
            [
                REQUEST,
                ("inference_refusals_total", 1.0, BUSY),
                ("inference_failures_total", 1.0, BUSY),
            ],
        ),
        (
            msgspec.structs.replace(answered(queue_s=0.005), fell_back=True),
            [REQUEST, RUN, COMPUTE, ("inference_fallbacks_total", 1.0, LABELS), *OBSERVED, ALONE],
        ),
        (answered(outcome=Outcome.UNKNOWN_MODEL), []),
    ],
)
def test_each_outcome_has_its_figures(
    told: Answered, figures: list[tuple[str, float, dict[str, str]]]
) -> None:
    heard = Heard()
    record(heard, told)
    assert [(name, labels) for name, _, labels in heard.figures] == [
        (name, labels) for name, _, labels in figures
    ]
    assert [value for _, value, _ in heard.figures] == pytest.approx([v for _, v, _ in figures])
    assert heard.events == []


def test_a_refusal_before_anything_served_names_no_variant() -> None:
    heard = Heard()
    record(heard, answered(None, outcome=Outcome.REFUSED))
    labels = {"variant": "none", "release": "none"}
    assert [labels | given == given for _, _, given in heard.figures] == [True] * 3


def test_that_requests_cannot_be_joined_is_an_event() -> None:
    heard = Heard()
    record(heard, msgspec.structs.replace(answered(), apart="out of memory"))
    assert heard.events == [
        ("worker", "requests for this model cannot be joined: out of memory", LABELS)
    ]


def test_how_samples_were_distributed_is_counted() -> None:
    heard = Heard()
    seen = Seen(tensor="output.scores", measure="class", bin=3, samples=2)
    record(heard, msgspec.structs.replace(answered(), seen=(seen,)))
    labels = LABELS | {"tensor": "output.scores", "measure": "class", "bin": "3"}
    assert ("model_samples_total", 2.0, labels) in heard.figures
