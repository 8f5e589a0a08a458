"""Whatever applications say, through stops and power cuts: each answer counts once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.serve.errors import FeedbackError
from agent.serve.feedback.intake import Feedback
from agent.serve.feedback.kept import FILE, KeptAnswers
from agent.serve.feedback.settings import FeedbackSettings
from agent.serve.feedback.truths import FeedbackRequest
from agent.serve.frames import Given
from telemetry.device.recorder import Recorder
from telemetry.histogram import ExponentialHistogram
from tests.simulators.answers import answered
from tests.simulators.clock import FakeClock
from tests.unit.wire.package.test_scores import info, output
from wire.health import HealthSnapshot
from wire.telemetry import HistogramPoint

MOST, KEEP_S = 2, 100.0
SETTINGS = FeedbackSettings(enabled=True, answers=MOST, keep_s=KEEP_S)
INFO = info(output(-1, 3))
NAMES = st.sampled_from("abc")
CLASSES = st.integers(0, 2)
TIMES_S = st.sampled_from([1.0, 101.0])


class Known(msgspec.Struct):
    """An answer, as a person would note it."""

    name: str
    at_s: float
    ours: int
    truth: int | None = None


class AnyOrder(RuleBasedStateMachine):
    """The newest answers are known, and each counts by the first truth that was told."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.recorder = Recorder(self.clock)
        self.known: list[Known] = []
        self.right = self.wrong = 0
        self.start()

    def teardown(self) -> None:
        self.place.cleanup()

    def start(self) -> None:
        kept = KeptAnswers(Path(self.place.name), self.recorder, self.clock)
        health = HealthSnapshot(at_s=0.0, headroom=0.1)
        self.feedback = Feedback(SETTINGS, kept, lambda: health, self.recorder, self.clock)
        self.feedback.load()
        assert not (Path(self.place.name) / FILE).exists()

    @rule(name=NAMES, ours=CLASSES)
    def answer(self, name: str, ours: int) -> None:
        given = Given(id=name, classes=(ours,))
        self.feedback.remember(msgspec.structs.replace(answered(), given=given, info=INFO))
        others = [each for each in self.known if each.name != name]
        self.known = [*others, Known(name, self.clock.now_s(), ours)][-MOST:]

    @rule(name=NAMES, truth=CLASSES)
    def tell(self, name: str, truth: int) -> None:
        self.known = [each for each in self.known if self.clock.now_s() - each.at_s <= KEEP_S]
        found = next((each for each in self.known if each.name == name), None)
        expected: object = 404
        if found is not None and found.truth is None:
            found.truth, expected = truth, True
            self.right += found.ours == truth
            self.wrong += found.ours != truth
        elif found is not None:
            expected = False if found.truth == truth else 409
        said = FeedbackRequest(id=name, label=truth)
        try:
            counted = self.feedback.take("digits", None, said)
            became: object = counted.is_new
        except FeedbackError as exc:
            became = exc.status
        assert became == expected

    @rule(time_s=TIMES_S)
    def wait(self, time_s: float) -> None:
        self.clock.advance(time_s)

    @rule(off_s=TIMES_S)
    def stop_and_start(self, off_s: float) -> None:
        self.feedback.close()
        self.clock = FakeClock(self.clock.now_s() + off_s)  # the device, too, starts anew
        self.start()

    @rule()
    @precondition(lambda self: self.known)
    def power_cut(self) -> None:
        self.start()
        self.known = []

    @invariant()
    def counted_once(self) -> None:
        points, _ = self.recorder.drain(whole=True)
        histograms = [
            ExponentialHistogram.from_bytes(point.blob)
            for point in points
            if isinstance(point, HistogramPoint)
        ]
        self.right -= round(sum(each.total for each in histograms))
        self.wrong -= sum(each.zeros for each in histograms)
        assert (self.right, self.wrong) == (0, 0)
        assert len(self.feedback._answers) <= MOST


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
