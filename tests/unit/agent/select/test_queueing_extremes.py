"""The share of requests in time is a share, whatever is put in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.select.queueing import share_in_time, wait_factor


@given(
    deadline_s=st.floats(0.0, 1e9),
    rate=st.floats(0.0, 1e9),
    service_s=st.floats(0.0, 1e6),
    log_sigma=st.floats(0.0, 1e3),
    dispersion=st.floats(0.0, 64.0),
    log_variance=st.floats(0.0, 1e6),
)
def test_the_share_in_time_is_a_share(
    deadline_s: float,
    rate: float,
    service_s: float,
    log_sigma: float,
    dispersion: float,
    log_variance: float,
) -> None:
    share = share_in_time(
        deadline_s,
        [rate],
        service_s=service_s,
        log_sigma=log_sigma,
        wait_factor=wait_factor(dispersion, log_variance),
    )
    assert 0.0 <= share <= 1.0
