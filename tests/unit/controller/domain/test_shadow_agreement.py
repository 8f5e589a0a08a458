"""Whether a shadow agrees: devices count once, and few of them tell nothing."""

from __future__ import annotations

from controller.domain.shadow_agreement import LEAST_REQUESTS, why_not

DEVICES = [f"d-{number}" for number in range(5)]
EACH = dict.fromkeys(DEVICES, float(LEAST_REQUESTS))


def test_all_alike_agree() -> None:
    assert why_not(EACH, EACH, 100.0) == ""


def test_a_device_counts_once_however_many_requests_it_compared() -> None:
    requests = EACH | {"d-0": 1_000_000.0}
    agreements = EACH | {"d-0": 0.0}
    assert why_not(requests, agreements, 80.0) == ""
    assert why_not(requests, agreements, 80.1) == (
        "it agrees in 80 % of the requests, at the mean over 5 devices"
    )


def test_a_device_of_which_no_request_agreed_counts_as_none() -> None:
    assert "it agrees in 0 %" in why_not(EACH, {}, 1.0)


def test_few_requests_and_few_devices_tell_nothing() -> None:
    requests = EACH | {"d-0": LEAST_REQUESTS - 1.0}
    assert why_not(requests, requests, 1.0).startswith("4 devices have compared 20 requests")
