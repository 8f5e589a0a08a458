"""What feedback counts as, what is refused, and what is kept of an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.app.config_file import load_config
from agent.errors import ConfigError
from agent.serve.errors import FeedbackError
from agent.serve.feedback.answers import Answer, Answers, Group, key_of
from agent.serve.feedback.bands import thermal_band
from agent.serve.feedback.intake import Feedback
from agent.serve.feedback.kept import FILE, MAX_BYTES, KeptAnswers
from agent.serve.feedback.settings import MAX_ANSWERS, FeedbackSettings
from agent.serve.feedback.truths import FeedbackRequest, truth_of
from agent.serve.frames import Given
from tests.simulators.answers import answered
from tests.simulators.clock import FakeClock
from tests.unit.agent.serve.test_answered import Heard
from tests.unit.wire.package.test_scores import info, output
from wire.health import HealthSnapshot
from wire.package.processing import Postprocessing
from wire.package.scores import MOST_CLASSES, Classes

LABELLED = info(output(-1, 3), postprocessing={"y": Postprocessing(labels=("cat", "dog"))})
ANIMALS = Classes(output="y", number=3, labels=("cat", "dog"))


def feedback(directory: Path, heard: Heard, headroom: float | None = 0.1) -> Feedback:
    clock = FakeClock()
    kept = KeptAnswers(directory, heard, clock)
    health = HealthSnapshot(at_s=0.0, headroom=headroom)
    made = Feedback(FeedbackSettings(enabled=True), kept, lambda: health, heard, clock)
    made.load()
    return made


def answer(*classes: int, scores: Classes | None = ANIMALS) -> Answer:
    group = Group(release="digits:1", variant="a", thermal_band="cool", classes=scores)
    return Answer(0.0, group, classes)


@pytest.mark.parametrize(
    ("headroom", "throttled", "band"),
    [
        (None, None, "unknown"),
        (None, True, "hot"),
        (0.0, False, "cool"),
        (0.69, None, "cool"),
        (0.70, False, "warm"),
        (0.85, False, "hot"),
        (0.2, True, "hot"),
    ],
)
def test_bands_follow_the_heat(headroom: float | None, throttled: bool | None, band: str) -> None:
    health = HealthSnapshot(at_s=0.0, headroom=headroom, throttled=throttled)
    assert thermal_band(health) == band


def test_each_sample_counts_for_release_variant_and_band(tmp_path: Path) -> None:
    heard = Heard()
    made = feedback(tmp_path, heard, headroom=0.9)
    given = Given(id="q", classes=(0, 1, 2))
    made.remember(msgspec.structs.replace(answered(), given=given, info=LABELLED))
    made.remember(answered())  # a device that names no answers remembers none
    counted = made.take("digits", "1", FeedbackRequest(id="q", label=("cat", 1, "cat")))
    assert (counted.is_new, counted.samples, counted.right) == (True, 3, 2)
    again = made.take("digits", None, FeedbackRequest(id="q", label=(0, "dog", 0)))
    assert (again.is_new, again.right) == (False, 2)
    attributes = {"release": "digits:1", "variant": "a", "thermal_band": "hot"}
    assert heard.figures == [
        ("feedback_accuracy_ratio", value, attributes) for value in (1.0, 1.0, 0.0)
    ]


def test_a_score_is_for_models_of_any_kind(tmp_path: Path) -> None:
    heard = Heard()
    made = feedback(tmp_path, heard)
    made.remember(msgspec.structs.replace(answered(), given=Given(id="q"), info=info()))
    assert made.take("digits", None, FeedbackRequest(id="q", score=0.75)).right is None
    assert [figure[:2] for figure in heard.figures] == [("feedback_scores", 0.75)]
    with pytest.raises(FeedbackError) as refused:
        made.take("digits", None, FeedbackRequest(id="q", score=0.5))
    assert refused.value.status == 409
    for model, version in (("digits", "2"), ("other", None)):
        with pytest.raises(FeedbackError) as refused:
            made.take(model, version, FeedbackRequest(id="q", score=0.75))
        assert refused.value.status == 404
    assert [figure[2] for figure in heard.figures[1:]] == [
        {"reason": "contradiction"},
        {"reason": "unknown"},
        {"reason": "unknown"},
    ]


@pytest.mark.parametrize(
    ("said", "about", "text"),
    [
        ({}, answer(0), "say either which class is right or how good"),
        ({"label": 0, "score": 1.0}, answer(0), "say either which class is right or how good"),
        ({"label": 3}, answer(0), "there is no class 3; the model's are 0 to 2"),
        ({"label": -1}, answer(0), "there is no class -1"),
        ({"label": 10**30}, answer(0), "there is no class 1000"),
        ({"label": "Cat"}, answer(0), "there is no label 'Cat'; the model has cat, dog"),
        (
            {"label": "cat"},
            answer(0, scores=Classes(output="y", number=3)),
            "this model declares no labels; send the index",
        ),
        ({"label": 0}, answer(scores=None), "this model tells no classes apart; send a score"),
        ({"label": 0}, answer(), "of a request with so many samples no classes are kept"),
        ({"label": 0}, answer(0, 1), "the request had 2 samples, and this is about 1"),
        ({"label": ()}, answer(0), "the request had 1 samples, and this is about 0"),
        ({"score": float("nan")}, answer(0), "score is not a number within 0 and"),
        ({"score": float("inf")}, answer(0), "score is not a number within 0 and"),
        ({"score": -0.5}, answer(0), "of an error send its size"),
    ],
)
def test_what_cannot_be_of_the_answer_is_refused(
    said: dict[str, Any], about: Answer, text: str
) -> None:
    with pytest.raises(FeedbackError) as refused:
        truth_of(FeedbackRequest(id="q", **said), about)
    assert str(refused.value).startswith(text) or text in str(refused.value)
    assert refused.value.status == 400


def test_what_is_kept_of_an_answer_is_small_whatever_its_id_is(tmp_path: Path) -> None:
    assert len(key_of("digits", "x" * 1024)) == len(key_of("digits", "\ud800")) == 12
    assert key_of("a", "b") != key_of("ab", "")
    clock, heard = FakeClock(), Heard()
    kept = KeptAnswers(tmp_path, heard, clock)
    known = Answers(1000, 10.0)
    for number in range(1010):
        known.remember(key_of("digits", str(number)), answer(*[MOST_CLASSES] * 16))
    kept.save(list(known.known(0.0)))
    assert (tmp_path / FILE).stat().st_size * MAX_ANSWERS / 1000 < MAX_BYTES
    assert len(kept.take()) == 1000
    assert heard.events == []


def test_an_id_that_is_used_again_is_as_new_as_its_newest_answer() -> None:
    known = Answers(2, 10.0)
    for name in (b"a", b"b", b"a", b"c"):
        known.remember(name, answer(0))
    assert [name for name, _ in known.known(0.0)] == [b"a", b"c"]


def test_answers_grow_older_while_the_agent_does_not_run(tmp_path: Path) -> None:
    clock = FakeClock()
    clock.advance(7.0)
    KeptAnswers(tmp_path, Heard(), clock).save([(key_of("digits", "q"), answer(0))])
    later = FakeClock(clock.now_s() + 5.0)
    ((_, found),) = KeptAnswers(tmp_path, Heard(), later).take()
    assert found.at_s == pytest.approx(-12.0)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"checksum":"' + b"0" * 64 + b'",}'])
def test_a_damaged_file_is_not_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    heard = Heard()
    made = feedback(tmp_path, heard)
    ((kind, reason, _),) = heard.events
    assert (kind, reason.partition(":")[0]) == (
        "storage",
        "feedback about answers before the restart is not taken",
    )
    with pytest.raises(FeedbackError):
        made.take("digits", None, FeedbackRequest(id="q", label=0))


def test_after_a_stop_nothing_is_taken(tmp_path: Path) -> None:
    made = feedback(tmp_path, Heard())
    made.close()
    made.remember(msgspec.structs.replace(answered(), given=Given(id="q"), info=info()))
    with pytest.raises(FeedbackError) as refused:
        made.take("digits", None, FeedbackRequest(id="q", score=1.0))
    assert refused.value.status == 503
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("answers = 0", "feedback.answers is not within 1 to 65536"),
        ("keep_s = 0.0", "feedback.keep_s is not above 0"),
        ("keep_s = inf", "feedback.keep_s is not above 0"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, setting: str, text: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        'device = "a"\nstate_dir = "s"\nprofile = "p"\ntrust = "t"\n'
        f"[feedback]\nenabled = true\n{setting}\n"
    )
    with pytest.raises(ConfigError, match=text):
        load_config(path)
