"""Gates as people write them."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.language import MAX_CHARS, parse_gate
from controller.errors import InvalidRequestError


def test_a_statistic_of_a_metric() -> None:
    gate = parse_gate(" p99.9( inference_latency_ms{variant=int8, thermal_band=hot} )<=+10% ")
    assert gate.text == "p99.9(inference_latency_ms{variant=int8,thermal_band=hot}) <= +10%"
    assert (gate.metric, gate.statistic, gate.over) == ("inference_latency_ms", "p99.9", "")
    assert gate.where == (("variant", "int8"), ("thermal_band", "hot"))
    assert (gate.limit, gate.unit, gate.is_relative) == (0.1, "%", True)
    assert gate.bound == pytest.approx(math.log(1.1))


def test_what_may_fall_has_a_limit_below_0() -> None:
    gate = parse_gate("mean(feedback_accuracy_ratio) >= -2pp")
    assert (gate.limit, gate.bound, gate.unit) == (-0.02, -0.02, "pp")


def test_a_quotient_of_counters_is_a_share() -> None:
    gate = parse_gate(
        "inference_failures_total{code=serve.worker}/inference_requests_total <= +0.5pp"
    )
    assert (gate.metric, gate.over) == ("inference_failures_total", "inference_requests_total")
    assert (gate.where, gate.limit) == ((("code", "serve.worker"),), 0.005)


def test_a_limit_without_a_unit_is_in_that_of_the_metric() -> None:
    gate = parse_gate("mean(temperature_c) <= +3")
    assert (gate.limit, gate.unit, gate.bound) == (3.0, "", 3.0)


@pytest.mark.parametrize(
    "text",
    [
        "mean(a) <= +1%",
        "min(a.b) >= -5%",
        "p50(a{b=c}) <= +0.25",
        "rate(a_total) <= +0.5",
        "a_total/b_total <= +1pp",
        "a_total{b=c,d=e}/a_total{b=c} <= +1pp",
        "a_total/b_total <= +5pp in the worst case",
        "mean(a) >= -5pp in the worst case",
        "shift(model_samples_total{tensor=output.y}) <= +5pp",
        "mean(memory_available_bytes) >= -50000000",
        "mean(a) <= +0.000001",
        "mean(a) <= +1.23456789%",
    ],
)
def test_what_is_shown_can_be_read_again(text: str) -> None:
    assert parse_gate(text).text == text
    assert parse_gate(parse_gate(text).text) == parse_gate(text)


@given(st.decimals(min_value="0.000001", max_value="1e12", allow_nan=False, places=9))
def test_no_limit_is_rounded(limit: Decimal) -> None:
    gate = parse_gate(f"mean(a) <= +{limit:f}")
    assert gate.limit == float(limit)
    assert parse_gate(gate.text) == gate


@given(st.text(max_size=60))
def test_any_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_gate(f"{text}!")
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot read the gate"),
        ("x" * (MAX_CHARS + 1), "too long"),
        ("mean(a) < +1%", "cannot read the gate"),
        ("mean(a) <= +1ms", "cannot read the gate"),
        ("mean(a) <= 1%", "how far the value may grow"),
        ("mean(a) <= -1%", "how far the value may grow"),
        ("mean(a) >= +1%", "how far the value may fall"),
        ("mean(a) >= -0%", "how far the value may fall"),
        ("mean(a) >= -100%", "no amount falls by 100 %"),
        ("count(a) <= +1%", "cannot compare the count"),
        ("mean(A) <= +1%", "'A' is not the name of a metric"),
        ("a/b <= +10%", "no part of itself"),
        ("rate(a_total) <= +10%", "there is no part to grow by"),
        ("mean(a{}) <= +1", ""),
        ("mean(a{b}) <= +1", "cannot read {b}"),
        ("mean(a{b=}) <= +1", "cannot read {b=}"),
    ],
)
def test_what_is_wrong_is_told(text: str, said: str) -> None:
    if not said:
        assert parse_gate(text).where == ()
        return
    with pytest.raises(InvalidRequestError) as caught:
        parse_gate(text)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mean(a) <= +1% in the worst case", "only a share has a worst case"),
        ("mean(a) <= +1 in the worst case", "only a share has a worst case"),
        ("shift(model_samples_total) <= +5pp in the worst case", "only a share has a worst case"),
        ("shift(a) <= +5pp", "how often answers name each class"),
        ("shift(model_samples_total) <= +5%", "how often answers name each class"),
        ("shift(model_samples_total) >= -5pp", "how often answers name each class"),
    ],
)
def test_a_worst_case_is_of_shares_and_a_shift_of_classes(text: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse_gate(text)
