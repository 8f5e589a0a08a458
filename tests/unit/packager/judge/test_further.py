"""Further metrics: how they are read, what their gates say, and what chance leaves of them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import BuildError, DataError
from packager.judge.choice import resolve_metric
from packager.judge.comparison import compare
from packager.judge.evidence import evidence
from packager.judge.further import (
    MAX_FURTHER,
    certain,
    clause,
    doubts,
    kept_shares,
    misses,
    neediest,
    read_further,
    reads_boxes,
)
from packager.judge.further_figures import Truth, check_differs, further_figures, settled
from packager.judge.gates import Gates, judge, vouched
from packager.judge.intervals import ALPHA, ROUNDING
from packager.judge.metrics import METRICS, wanted
from packager.judge.ranking import beats, remoteness
from packager.plan.figures import Comparison, Evidence
from packager.plan.further import LABELS, FurtherMetric, further_option, labels_option
from tests.unit.packager.judge.test_gates import HERE, profile, variant
from wire.codec import from_json, to_json
from wire.package.accuracy import Accuracy, Certainty, FurtherAccuracy
from wire.package.variant import Variant

UNUSED = {"agreement", "cosine"}
NEEDED = {"top1", "top5", "perplexity"}
NAMES = st.text(st.characters(codec="utf-8", exclude_characters=",=:"), min_size=1, max_size=20)
PLACE = FurtherMetric(output="place", metric="mae,output=place", min_retention=0.9)


@given(
    output=NAMES,
    name=st.sampled_from(sorted(METRICS)),
    labels=st.none() | NAMES,
    hundredths=st.none() | st.integers(0, 100),
    last=st.booleans(),
)
def test_what_is_written_is_what_is_read(
    output: str, name: str, labels: str | None, hundredths: int | None, last: bool
) -> None:
    if name in UNUSED:
        labels = None
    elif name in NEEDED:
        labels = labels or "places"
    share = None if hundredths is None else hundredths / 100
    options = [] if labels is None else [f"labels={labels}"]
    options += [] if share is None else [f"min-retention={share:.2f}"]
    options = options[::-1] if last else options
    (found,) = read_further([",".join((f"{output}={name}", *options))])
    assert (found.output, found.labels, found.min_retention) == (output, labels or "", share)
    assert wanted(found.metric) == (name, {"output": output})


@given(st.lists(st.text(max_size=40), max_size=3))
def test_any_other_text_is_refused_in_one_line_that_says_what_to_write(texts: list[str]) -> None:
    fault = None
    found: tuple[FurtherMetric, ...] = ()
    try:
        found = read_further(texts)
    except BuildError as exc:
        fault = exc
    if fault is None:
        assert all(one.output and one.metric for one in found)
    else:
        assert fault.remedy
        assert fault.message.startswith("further metric ")
        assert "\n" not in fault.message


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("mae", "names no output; write --metric OUTPUT=METRIC"),
        ("place=auto", "only the first metric can be auto"),
        ("place=mea", "there is no metric 'mea'; write --metric OUTPUT= and one of top1, top5"),
        ("mine:metric", "a function can only be the first --metric"),
        ("place=mae,axis=1", "no option 'axis=1'; its options are output=NAME, labels=NAME and"),
        ("place=mae,min-retention=", "min-retention '' is no share within 0 to 1; write a decimal"),
        ("place=mae,min-retention=1.01", "min-retention '1.01' is no share"),
        ("place=mae,min-retention=nan", "min-retention 'nan' is no share"),
        ("place=mae,min-retention=-0.1", "min-retention '-0.1' is no share"),
        ("place=mae,min-retention=9e-1", "min-retention '9e-1' is no share"),
        ("place=mae,min-retention=0.9,min-retention=0.8", "has the option 'min-retention' twice"),
        ("place=mae,min_retention=0.9", "there is no option 'min_retention=0.9'"),
        ("place=mae,output=other", "names its output twice"),
        ("place=mae,labels=", "names no labels after labels="),
        ("place=cosine,labels=places", "cosine uses no labels; leave out labels="),
        ("scores=top1", "top1 needs labels; add ,labels=NAME"),
    ],
)
def test_a_wrong_further_metric_is_refused_with_the_remedy(text: str, fault: str) -> None:
    with pytest.raises(BuildError) as caught:
        read_further([text])
    assert fault in str(caught.value)
    assert str(caught.value).startswith(f"further metric '{text}'")


def test_an_output_may_be_named_like_any_tensor_and_as_an_option() -> None:
    first, second = read_further(["net/out:0=mae", "cosine,output=b"])
    assert (first.output, first.metric) == ("net/out:0", "mae,output=net/out:0")
    assert (second.output, second.metric) == ("b", "cosine,output=b")


def test_duplicates_and_too_many_are_refused() -> None:
    with pytest.raises(BuildError, match=r"'b=mae,min-retention=0\.9' is given twice"):
        read_further(["b=mae", "b=mae,min-retention=0.9"])
    assert len(read_further(["b=mae", "b=mae,labels=places", "b=cosine", "c=mae"])) == 4
    texts = [f"o{number}=mae" for number in range(MAX_FURTHER + 1)]
    assert len(read_further(texts[:-1])) == MAX_FURTHER
    with pytest.raises(BuildError, match="9 further metrics are given, but at most 8"):
        read_further(texts)


def test_steps_know_the_metrics_and_not_the_gates() -> None:
    asked = read_further(["b=mae,labels=places,min-retention=0.5", "c=mae,labels=label"])
    assert labels_option(asked) == {"labels": ["places"]}, "`label` is the main metric's"
    assert all("min_retention" not in one for one in further_option(asked)["further"])
    assert (labels_option(()), further_option(())) == ({}, {})
    assert reads_boxes("top1", read_further(["b=map"]))
    assert reads_boxes("auto", ())
    assert not reads_boxes("top1", asked)


def heads(noise: float, samples: int = 200) -> tuple[dict[str, np.ndarray], Truth]:
    """Return a variant's answers with noise in one head, and what they are compared with."""
    rng = np.random.default_rng(1)
    ideal = {"scores": rng.normal(size=(samples, 3)), "place": rng.normal(size=(samples, 1))}
    ours = {
        "scores": ideal["scores"].copy(),
        "place": ideal["place"] + noise * rng.normal(size=(samples, 1)),
    }
    return ours, Truth(reference=ideal, labels=None, detector=None)


def test_a_further_metric_sees_its_own_output_alone() -> None:
    ours, truth = heads(0.5)
    for text, exact in (("scores=agreement", True), ("scores=mae", True), ("place=mae", False)):
        (asked,) = read_further([text])
        found, known = further_figures(settled(asked, truth), ours, truth)
        assert (found.retention == 1.0) == exact
        assert (found.worst_error == 0.0) == exact
        assert known.agreed is None, "the gate of disagreement is the main metric's"


def test_a_further_metric_is_computed_as_the_same_main_metric() -> None:
    ours, truth = heads(0.3)
    labels = truth.reference["place"] + 0.1
    (asked,) = read_further(["place=rmse,labels=places"])
    asked = settled(asked, truth._replace(labels=labels))
    found, known = further_figures(asked, ours, truth._replace(labels=labels))
    main = compare(ours, truth.reference, labels, "rmse,output=place").accuracy
    assert (found.value, found.reference) == (main.value, main.reference)
    assert found.retention == main.retention
    assert known == evidence(ours, truth.reference, labels, "rmse,output=place")

    part = [7, 3, 90]
    some = {name: tensor[part] for name, tensor in ours.items()}
    found, _ = further_figures(asked, some, truth._replace(labels=labels), indices=part)
    assert found.samples == 3
    assert found.value == pytest.approx(
        float(np.sqrt(np.mean((some["place"] - labels[part]) ** 2)))
    )


def test_what_does_not_fit_the_model_is_refused() -> None:
    _, truth = heads(0.0)
    with pytest.raises(DataError, match="no output 'boxes'; its outputs are scores, place"):
        settled(read_further(["boxes=mae"])[0], truth)
    with pytest.raises(DataError, match="no output holds class scores; 'place'"):
        settled(read_further(["place=agreement"])[0], truth)


def test_the_main_metric_once_more_is_refused() -> None:
    _, truth = heads(0.0)
    main = resolve_metric("scores=mae", truth.reference, None)
    (again, other) = read_further(["scores=mae", "scores=mae,labels=label"])
    with pytest.raises(DataError, match="mae of 'scores' is the main metric already"):
        check_differs(again, main, truth.reference, labelled=False)
    with pytest.raises(DataError, match="is the main metric already"):
        check_differs(other, main, truth.reference, labelled=True)
    check_differs(again, main, truth.reference, labelled=True)  # against the reference's answers
    check_differs(again, "own:metric", truth.reference, labelled=False)
    check_differs(read_further(["place=mae"])[0], main, truth.reference, labelled=False)
    assert "label" in LABELS


def figures(retention: float, certainty: Certainty | None = None) -> FurtherAccuracy:
    return FurtherAccuracy(
        output="place",
        metric="mae",
        value=0.2,
        reference=0.2 * retention,
        retention=retention,
        worst_error=0.5,
        samples=100,
        certainty=certainty or msgspec.UNSET,
    )


def bounds(low: float | None, needed: int) -> Certainty:
    return Certainty(
        retention_low=low,
        retention_high=None if low is None else 1.0,
        agreement_low=None,
        agreement_high=None,
        confidence=0.975,
        compared=1,
        samples_needed=needed,
    )


def judged(name: str, found: FurtherAccuracy, *, latency_ms: float = 1.0) -> Variant:
    one = variant(name, latency_ms=latency_ms)
    accuracy = one.info.accuracy
    assert accuracy is not None
    accuracy = msgspec.structs.replace(accuracy, further=(found,))
    return msgspec.structs.replace(one, info=msgspec.structs.replace(one.info, accuracy=accuracy))


def verdict_of(one: Variant, gates: Gates) -> tuple[bool, str, str]:
    found = judge((one,), (profile(),), gates, references=frozenset(), here=HERE)["box"][one.name]
    return found.kept, found.reason, found.doubt


def test_a_further_gate_passes_fails_or_cannot_tell() -> None:
    gates = Gates(further=(PLACE,))
    assert verdict_of(judged("a", figures(0.95, bounds(0.91, 0))), gates) == (True, "kept", "")
    kept, reason, _ = verdict_of(judged("a", figures(0.85, bounds(0.8, 700))), gates)
    assert not kept
    assert reason == (
        "retention of place=mae 0.8500 < 0.9000 (0.8000 to 1.0000, each with 97.50% confidence)"
    )
    unsure = judged("a", figures(0.95, bounds(0.88, 700)))
    kept, reason, doubt = verdict_of(unsure, gates)
    assert kept
    assert doubt == (
        "cannot tell: retention of place=mae is 0.9500, but with 97.50% confidence only at least "
        "0.8800, below 0.9000; about 700 samples would be needed instead of 100"
    )
    assert doubt in reason
    kept, reason, _ = verdict_of(unsure, msgspec.structs.replace(gates, strict=True))
    assert (kept, reason) == (False, doubt)
    _, _, doubt = verdict_of(judged("a", figures(0.95, bounds(None, 10**6))), gates)
    assert doubt == (
        "cannot tell: retention of place=mae is 0.9500, but 100 samples give no bound for it"
    )


def test_without_a_gate_of_its_own_the_main_one_counts() -> None:
    plain = msgspec.structs.replace(PLACE, min_retention=None)
    assert not verdict_of(judged("a", figures(0.95)), Gates(further=(plain,)))[0]
    assert verdict_of(judged("a", figures(0.95)), Gates(further=(plain,), min_retention=0.9))[0]


def test_other_kernels_are_held_to_the_further_gates() -> None:
    good, worse = judged("a", figures(0.95)), judged("a", figures(0.5))
    gates = Gates(further=(PLACE,))
    assert good.info.accuracy
    assert worse.info.accuracy
    assert not vouched(good, good.info.accuracy, gates)
    assert "retention of place=mae 0.5000 < 0.9000" in vouched(good, worse.info.accuracy, gates)


def test_a_variant_is_beaten_only_by_one_that_is_as_good_by_every_metric() -> None:
    slow, fast = judged("slow", figures(0.99), latency_ms=2.0), judged("fast", figures(0.95))
    assert not beats(fast, slow)
    assert beats(judged("fast", figures(0.99)), slow)
    assert beats(judged("fast", figures(1.4)), judged("slow", figures(1.2), latency_ms=2.0))
    assert remoteness(fast, slow, timed=True) == pytest.approx(0.4)
    assert kept_shares(comparison(1.0, 0.0).accuracy) == (1.0,)


def comparison(retention: float, error: float) -> Comparison:
    accuracy = variant("a").info.accuracy
    assert accuracy is not None
    return Comparison(
        accuracy=msgspec.structs.replace(accuracy, further=(figures(retention),)),
        evidence=Evidence(right=(90, 0, 0, 10), agreed=100),
        further=(Evidence(standard_error=error, degrees=99, equal_samples=10_000),),
        worst_errors={},
    )


def bounded(
    found: Comparison, *further: FurtherMetric, compared: int = 1, same: bool = False
) -> Accuracy:
    return certain(
        found, further, compared=compared, least_retention=0.5, most_disagreement=None, same=same
    )


def test_each_bound_counts_the_gates_of_all_metrics() -> None:
    found = bounded(comparison(0.95, 0.01), PLACE, compared=4)
    (place,) = found.further or ()
    assert found.certainty
    assert place.certainty
    for known in (found.certainty, place.certainty):
        assert known.confidence == pytest.approx(1 - ALPHA / (4 * 2))
        assert known.compared == 4
    assert place.certainty.samples_needed == 0
    assert place.certainty.retention_low == pytest.approx(0.95 - 2.544 * 0.01, abs=1e-3)
    assert place.certainty.agreement_low is None
    assert neediest(found) == found.certainty

    plain = msgspec.structs.replace(
        comparison(0.95, 0.01), further=(), accuracy=variant("a").info.accuracy
    )
    alone = bounded(plain, compared=4)
    assert alone.further is msgspec.UNSET
    assert alone.certainty
    assert alone.certainty.confidence == pytest.approx(1 - ALPHA / 4)


def test_a_gate_says_how_many_samples_would_show_that_it_holds() -> None:
    few = bounded(comparison(0.95, 0.05), PLACE)
    (place,) = few.further or ()
    assert place.certainty
    assert 100 < place.certainty.samples_needed < 1000
    assert neediest(few) == place.certainty
    same = bounded(comparison(0.95, 0.05), PLACE, same=True)
    (place,) = same.further or ()
    assert place.certainty
    assert place.certainty.samples_needed == 0


@given(st.floats(0, 2), st.floats(0, 1), st.floats(0, 1))
def test_a_gate_has_one_verdict(retention: float, low: float, least: float) -> None:
    needed = 0 if low >= least else 500
    accuracy = judged("a", figures(retention, bounds(min(low, retention), needed))).info.accuracy
    assert accuracy
    asked = (msgspec.structs.replace(PLACE, min_retention=least),)
    failed = len(list(misses(accuracy, asked, 0.99)))
    unsure = len(list(doubts(accuracy, asked, 0.99)))
    assert failed + unsure <= 1, "a figure that is off by rounding neither fails nor is sure"
    assert failed == (retention < least - ROUNDING)


def test_figures_without_further_metrics_keep_their_bytes() -> None:
    accuracy = variant("a").info.accuracy
    assert accuracy is not None
    assert b"further" not in to_json(accuracy)
    assert b'"labels"' not in to_json(figures(1.0)), "compared with the reference"
    full = msgspec.structs.replace(accuracy, further=(figures(1.0),))
    assert from_json(to_json(full), Accuracy) == full
    assert clause(msgspec.structs.replace(figures(1.0), labels="p")) == "place=mae,labels=p"


def test_an_older_reader_takes_figures_with_further_metrics() -> None:
    class Older(msgspec.Struct):
        metric: str
        retention: float

    accuracy = judged("a", figures(0.9)).info.accuracy
    assert from_json(to_json(accuracy), Older).metric == "top1"
