"""How long the supervisor waits before it starts the gRPC process again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.grpc_endpoint.keeper import FIRST_WAIT_S, LONGEST_WAIT_S, STEADY_S, next_wait_s


def test_a_process_that_ends_at_once_is_started_ever_more_rarely() -> None:
    waits, last_s = [], 0.0
    for _ in range(10):
        last_s = next_wait_s(last_s, 0.1)
        waits.append(last_s)
    assert waits[:4] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S, 8 * FIRST_WAIT_S]
    assert waits[-1] == LONGEST_WAIT_S


@given(st.floats(0, LONGEST_WAIT_S), st.floats(0, 1e9))
def test_each_wait_is_within_its_bounds(last_s: float, ran_s: float) -> None:
    assert FIRST_WAIT_S <= next_wait_s(last_s, ran_s) <= LONGEST_WAIT_S


def test_a_process_that_served_for_long_is_started_soon() -> None:
    assert next_wait_s(LONGEST_WAIT_S, STEADY_S) == FIRST_WAIT_S
