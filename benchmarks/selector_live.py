"""What the policies are worth on this machine, with real workers and a real disturbance.

Two variants run under ONNX Runtime with one thread, in real worker processes behind the real
router. Requests come by the clock, whether or not the last was answered, at the rate at which
the large variant keeps half a core busy. Now and then as many busy processes as there are cores run
beside it, at the same priority. Each policy has rounds of the same kind; the rounds alternate, and
each starts with nothing learnt.

The latencies are measured at the start, in quiet, and declared in the package; the deadline is
1.7 times that of the large variant. The retentions are made up: 1 for the large variant, 0.9 for
the small one. Worth: the retentions of the answers in time, over all requests.

Heat, fans and batteries do not matter here: only a slowdown by others does, and memory. So `rules`,
which looks at no latency, is expected to do as the large variant alone. What the best policy could
do is not known here; the best variant alone is, after the run.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import Row, against, alone, main
from benchmarks.policies.live import PROFILE, Answer, Round, Schedule, play
from benchmarks.policies.live_package import RETENTIONS, make
from wire.policy import Objective, PolicySpec

DEADLINE: Final = 1.7
"""Times the latency of the large variant."""

USE: Final = 0.5
"""Share of a core that the large variant takes."""

AIM: Final = 0.98
"""Of the worth of the best variant alone. A quick round ends before anything learnt pays, so that
it has no aim."""

MS_PER_S: Final = 1000.0


def measure(quick: bool) -> list[Row]:
    """Play all rounds.

    Args:
        quick: One short round of each policy.

    Returns:
        The rows.
    """
    rounds, cycles, cycle_s, busy_s = (1, 1, 11.0, 5.0) if quick else (2, 2, 27.0, 8.0)
    played: dict[str, list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder) / "package", PROFILE, 1.0 if quick else 3.0)
        deadline_ms = DEADLINE * made.latency_ms["large"]
        schedule = Schedule(
            period_s=made.latency_ms["large"] / MS_PER_S / USE,
            cycles=cycles,
            cycle_s=cycle_s,
            quiet_s=(cycle_s - busy_s) / 2,
            busy_s=busy_s,
        )
        for _ in range(rounds):
            for name, (spec, pinned) in _ways(deadline_ms).items():
                done = play(made, spec, schedule, pinned=pinned)
                played[name].append(_figures(done, schedule, deadline_ms))
    declared = [
        alone(f"{n}: latency as declared", [ms], unit="ms") for n, ms in made.latency_ms.items()
    ]
    return [*declared, *_rows(played, at_least=None if quick else AIM)]


def _ways(deadline_ms: float) -> dict[str, tuple[PolicySpec, str | None]]:
    """Return each policy, and each variant alone, by name: the policy and what is pinned."""
    aim = Objective(deadline_ms=deadline_ms)
    return {
        "adaptive": (PolicySpec(kind="adaptive", objective=aim), None),
        "rules": (PolicySpec(kind="rules", objective=aim), None),
        **{name: (PolicySpec(kind="rules"), name) for name in RETENTIONS},
    }


class Figures(NamedTuple):
    """What came of a round."""

    worth: float
    in_time: float
    in_time_beside: float
    """Of the requests that were due while the neighbours ran."""

    by_large: float
    switches: float
    p50_ms: float
    p99_ms: float
    """Of a refused request too: it took for ever."""


def _figures(played: Round, schedule: Schedule, deadline_ms: float) -> Figures:
    answers = played.answers
    in_time = [a for a in answers if _is_in_time(a, deadline_ms)]
    beside = [a for a in answers if schedule.is_busy(a.due_s)]
    taken_ms = sorted(math.inf if a.variant is None else a.latency_ms for a in answers)
    return Figures(
        worth=sum(RETENTIONS[a.variant or ""] for a in in_time) / len(answers),
        in_time=len(in_time) / len(answers),
        in_time_beside=sum(_is_in_time(a, deadline_ms) for a in beside) / len(beside),
        by_large=sum(a.variant == "large" for a in answers) / len(answers),
        switches=float(played.switches),
        p50_ms=taken_ms[len(taken_ms) // 2],
        p99_ms=taken_ms[len(taken_ms) * 99 // 100],
    )


def _is_in_time(answer: Answer, deadline_ms: float) -> bool:
    return answer.variant is not None and answer.latency_ms <= deadline_ms


def _rows(played: dict[str, list[Figures]], *, at_least: float | None) -> list[Row]:
    worth = {name: [f.worth for f in found] for name, found in played.items()}
    best = max(RETENTIONS, key=lambda name: statistics.median(worth[name]))
    rows = [
        against(
            "worth of adaptive", worth["adaptive"], worth[best],
            unit="share", peer=f"{best} alone, the best variant", at_least=at_least,
        ),
        against(
            "worth of adaptive", worth["adaptive"], worth["rules"], unit="share", peer="rules",
        ),
        against(
            "answers in time, adaptive", [f.in_time for f in played["adaptive"]],
            [f.in_time for f in played["rules"]], unit="share", peer="rules",
        ),
    ]  # fmt: skip
    for name, found in played.items():
        rows += [
            alone(f"{name}: worth", worth[name], unit="share"),
            alone(f"{name}: in time", [f.in_time for f in found], unit="share"),
            alone(
                f"{name}: in time beside the neighbours",
                [f.in_time_beside for f in found],
                unit="share",
            ),
            alone(f"{name}: by the large variant", [f.by_large for f in found], unit="share"),
            alone(f"{name}: switches", [f.switches for f in found], unit="a round"),
            alone(f"{name}: p50", [f.p50_ms for f in found], unit="ms"),
            alone(f"{name}: p99", [f.p99_ms for f in found], unit="ms"),
        ]
    return rows


if __name__ == "__main__":
    sys.exit(main("Selector on this machine, beside busy neighbours (retentions made up)", measure))
