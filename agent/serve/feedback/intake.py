"""Takes feedback about answers, and makes telemetry of it. For any thread.

Rules:
- An answer is remembered before its client gets it, so no feedback comes too early.
- Each answer counts once, however often and from however many threads its truth comes. What is not
  known any more is refused: so nothing counts twice, even after a restart.
- What counts, counts for the release, the variant and the thermal band of the answer, and for the
  minute in which the truth comes.
- Remembering raises nothing and writes nothing to the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from agent.ports import RecorderPort
from agent.serve.answered import Answered
from agent.serve.errors import FeedbackError
from agent.serve.feedback.answers import Answer, Answers, Group, Told, Truth, key_of, tell
from agent.serve.feedback.bands import thermal_band
from agent.serve.feedback.kept import KeptAnswers
from agent.serve.feedback.settings import FeedbackSettings
from agent.serve.feedback.truths import FeedbackRequest, truth_of
from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.package.scores import classes_of

MOST_GROUPS: Final = 256
"""Releases, variants and thermal bands that are looked up in one step."""

STOPPING: Final = "the endpoint is stopping"


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What an application is told."""

    is_new: bool
    """Whether it counted now; not if the same was said before."""

    samples: int
    right: int | None
    """How many of them were right; None for a score."""


class Feedback:
    """Remembers answers and takes the truth about them.

    Args:
        settings: How many answers are remembered, and for how long.
        kept: What is kept of them over a restart.
        health: Returns the newest readings.
        recorder: Takes what counts.
        clock: For the age of answers.
    """

    def __init__(
        self,
        settings: FeedbackSettings,
        kept: KeptAnswers,
        health: Callable[[], HealthSnapshot],
        recorder: RecorderPort,
        clock: Clock,
    ) -> None:
        self._keep_s = settings.keep_s
        self._answers = Answers(settings.answers, settings.keep_s)
        self._kept = kept
        self._health = health
        self._recorder = recorder
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._is_open = True

    def load(self) -> None:
        """Begin with the answers that an earlier run of the agent has left."""
        self._answers.restore(self._kept.take(), self._clock.monotonic_s())

    def close(self) -> None:
        """Take no more, and keep what is known for the next start."""
        with self._lock:
            self._is_open = False
        now_s = self._clock.monotonic_s()
        self._kept.save(list(self._answers.known(now_s)))

    def remember(self, answered: Answered) -> None:
        """Keep what feedback about an answer needs; a listener of routers.

        Args:
            answered: The record of a request.
        """
        given = answered.given
        if given is None:
            return
        band = thermal_band(self._health())
        key = key_of(answered.asked_model, given.id)
        with self._lock:
            if self._is_open:
                group = self._group(answered, band)
                answer = Answer(self._clock.monotonic_s(), group, given.classes)
                self._answers.remember(key, answer)

    def take(self, model: str, version: str | None, said: FeedbackRequest) -> Counted:
        """Count what an application says of an answer.

        Args:
            model: The model that gave the answer.
            version: Its version, if the application names one.
            said: What it says.

        Returns:
            What came of it.

        Raises:
            FeedbackError: It cannot be taken; with the HTTP status that says so.
        """
        with self._lock:
            answer = self._find(model, version, said.id)
            truth = truth_of(said, answer) if answer is not None else ()
            told = tell(answer, truth) if answer is not None else None
        if answer is None:
            self._recorder.add("feedback_refused_total", 1.0, {"reason": "unknown"})
            raise FeedbackError(
                f"no answer of {model[:80]!r} with this id is known",
                remedy="an answer is known until newer ones take its place, and for "
                f"{self._keep_s:g} s at most",
                status=404,
            )
        if told is Told.CONTRADICTION:
            self._recorder.add("feedback_refused_total", 1.0, {"reason": "contradiction"})
            raise FeedbackError(
                "another truth was told of this answer before, and that one counts", status=409
            )
        if told is Told.COUNTED:
            self._count(answer, truth)
        return _counted(answer, truth, is_new=told is Told.COUNTED)

    def _find(self, model: str, version: str | None, name: str) -> Answer | None:
        """Return the answer that feedback is about; None if it is not known.

        Raises:
            FeedbackError: The agent stops.
        """
        if not self._is_open:
            raise FeedbackError(STOPPING, status=503)
        answer = self._answers.find(key_of(model, name), self._clock.monotonic_s())
        if answer is None or version is None or answer.group.release == f"{model}:{version}":
            return answer
        return None

    def _group(self, answered: Answered, band: str) -> Group:
        """Return the group of an answer, mostly the same object as for others."""
        at = (answered.release, answered.variant, band)
        group = self._groups.get(at)
        if group is None:
            classes = classes_of(answered.info) if answered.info is not None else None
            group = Group(release=at[0], variant=at[1], thermal_band=band, classes=classes)
            if len(self._groups) >= MOST_GROUPS:
                self._groups.clear()
            self._groups[at] = group
        return group

    def _count(self, answer: Answer, truth: Truth) -> None:
        group = answer.group
        attributes = {
            "release": group.release,
            "variant": group.variant,
            "thermal_band": group.thermal_band,
        }
        if isinstance(truth, float):
            self._recorder.observe("feedback_scores", truth, attributes)
            return
        for is_right in _right(answer, truth):
            self._recorder.observe("feedback_accuracy_ratio", float(is_right), attributes)


def _right(answer: Answer, truth: tuple[int, ...]) -> list[bool]:
    return [ours == right for ours, right in zip(answer.classes, truth, strict=True)]


def _counted(answer: Answer, truth: Truth, *, is_new: bool) -> Counted:
    if isinstance(truth, float):
        return Counted(is_new=is_new, samples=1, right=None)
    return Counted(is_new=is_new, samples=len(truth), right=sum(_right(answer, truth)))
