"""The chain of the audit log finds what was changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from controller.domain.audit_chain import START, AuditRow, ChainCheck

ROWS = [
    AuditRow(
        sequence=number,
        at_ms=1_750_000_000_000 + number,
        actor="kim",
        role="operator",
        action="POST /v1/rollouts/{rollout}/pause",
        subject="rä1",
        outcome="committed",
    )
    for number in range(1, 6)
]
Log = list[tuple[AuditRow, str]]


def chained(rows: list[AuditRow]) -> Log:
    log, before = [], START
    for row in rows:
        before = row.hash_after(before)
        log.append((row, before))
    return log


def checked(log: Log, head: str = "") -> str | None:
    check = ChainCheck(head)
    for row, shown in log:
        fault = check.fault(row, shown)
        if fault is not None:
            return fault
    return check.missing_head()


def test_a_whole_log_fits_and_grows_over_a_head_that_was_written_down() -> None:
    log = chained(ROWS)
    assert checked([]) is None
    assert checked(log) is None
    assert checked(log, log[2][1]) is None
    assert checked(log, START) is None


def test_others_can_compute_the_hash() -> None:
    text = json.dumps(asdict(ROWS[0]), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    told = hashlib.sha256(f"{START}\n{text}".encode()).hexdigest()
    assert ROWS[0].hash_after(START) == told


@pytest.mark.parametrize(
    ("tamper", "first"),
    [
        (lambda log: [*log[:2], (replace(log[2][0], actor="max"), log[2][1]), *log[3:]], "row 3 "),
        (lambda log: [*log[:2], *log[3:]], "row 3 is missing"),
        (lambda log: log[1:], "row 1 is missing"),
        (lambda log: [log[0], log[2], log[1], *log[3:]], "row 2 is missing"),
        (lambda log: [*log[:3], (log[3][0], "0" * 64), log[4]], "row 4 does not fit"),
        (lambda log: [*log, log[-1]], "row 5 was added"),
        (lambda log: [(replace(log[0][0], sequence=-1), START), *log], "row -1 was added"),
    ],
)
def test_the_first_row_that_does_not_fit_is_named(tamper: Callable[[Log], Log], first: str) -> None:
    fault = checked(tamper(chained(ROWS)))
    assert fault is not None
    assert fault.startswith(first)


def test_a_log_that_was_cut_off_or_written_anew_lacks_the_head() -> None:
    head = chained(ROWS)[-1][1]
    for rows in (ROWS[:4], [replace(row, actor="max") for row in ROWS]):
        log = chained(rows)
        assert checked(log) is None
        assert "was cut off" in (checked(log, head) or "")
