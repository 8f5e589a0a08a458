"""What the judge says of a draw, and of two versions of a policy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.replay.run import replay
from agent.select.decisions import Candidate
from benchmarks import adaptation
from benchmarks.policies import intervals
from benchmarks.policies.baselines import BASELINES, ENGINEER_SHARE, engineer
from benchmarks.policies.families import draw
from benchmarks.policies.judged import FLOOR, SHARES, Figures, Judged, fitted_share, judged
from benchmarks.policies.oracle import best_possible

FAMILY, SEED = "calm", 9001
VARIANTS = tuple(
    Candidate(name=name, latency_p50_ms=ms, accuracy=accuracy, peak_memory_bytes=1, load_ms=1.0)
    for name, ms, accuracy in (("slow", 60.0, 1.0), ("quick", 20.0, 0.9))
)


def figures(worth: float, *, severe_s: float = 0.0, flaps: int = 0) -> Figures:
    return Figures(
        worth=worth, miss_ratio=0.1, severe_s=severe_s, switches=flaps, flaps=flaps, energy_j=1.0
    )


def record(
    *, ours: Figures, searched: float = 100.0, seed: int = 1, requests: float = 120.0
) -> Judged:
    return Judged(
        family=FAMILY,
        seed=seed,
        spacing="near",
        case="contested",
        hours=0.5,
        requests=requests,
        deadline_ms=100.0,
        variants=VARIANTS,
        alone={"slow": figures(50.0, severe_s=40.0), "quick": figures(90.0, severe_s=10.0)},
        policies={"adaptive": ours} | {n: figures(80.0) for n in ("rules", *BASELINES)},
        searched=searched,
        searched_severe_s=20.0,
    )


@pytest.fixture(scope="module")
def calm() -> Judged:
    return judged(FAMILY, SEED)


def test_the_best_known_is_never_below_anybody(calm: Judged) -> None:
    everyone = [*calm.alone.values(), *calm.policies.values()]

    assert calm.best >= max(f.worth for f in everyone)
    assert calm.best >= calm.searched
    assert all(calm.regret(name) >= 0.0 for name in calm.policies)


def test_the_engineers_figures_are_those_of_its_replay(calm: Judged) -> None:
    drawn = draw(FAMILY, SEED)
    totals = replay(drawn.trace, drawn.variants, drawn.spec("rules"), policy=engineer).totals

    assert totals.switches == 0
    assert calm.policies["engineer"].worth == pytest.approx(totals.worth)
    assert ENGINEER_SHARE in SHARES


def test_a_bounded_search_finds_a_way_that_is_no_better_than_that_of_the_oracle() -> None:
    drawn = draw(FAMILY, SEED)
    short = msgspec.structs.replace(
        drawn.trace, ticks=drawn.trace.ticks[:60], came=drawn.trace.came[:60]
    )
    whole = best_possible(short, drawn.variants)
    bounded = best_possible(short, drawn.variants, every=4, most_ways=10)

    assert bounded.score <= whole.score + 1e-9
    assert bounded.score >= 0.95 * whole.score
    assert best_possible(short, drawn.variants, every=1000).switches == 0


def test_a_regret_is_a_share_of_the_best_known() -> None:
    assert record(ours=figures(95.0)).regret("adaptive") == pytest.approx(0.05)
    assert record(ours=figures(95.0), searched=0.0).regret("adaptive") == 0.0
    assert record(ours=figures(95.0)).behind_alone("adaptive") == pytest.approx(-5.0 / 90.0)


def test_where_nothing_can_be_won_little_is_lost() -> None:
    poor = record(ours=figures(88.0), searched=0.0, requests=10_000.0)

    assert poor.regret("adaptive") == pytest.approx(2.0 / (FLOOR * 10_000.0))


def test_only_misses_that_some_variant_avoided_count() -> None:
    least = min(f.miss_ratio for f in record(ours=figures(95.0)).alone.values())
    missed = msgspec.structs.replace(figures(95.0), miss_ratio=least + 0.25)
    assert record(ours=missed).avoidable_misses("adaptive") == pytest.approx(0.25)
    fewer = msgspec.structs.replace(figures(95.0), miss_ratio=0.0)
    assert record(ours=fewer).avoidable_misses("adaptive") == 0.0


def test_only_heat_that_another_way_avoided_counts() -> None:
    assert record(ours=figures(95.0, severe_s=40.0)).severe_per_hour("adaptive") == 60.0
    assert record(ours=figures(95.0, severe_s=5.0)).severe_per_hour("adaptive") == 0.0


def test_the_engineers_share_is_the_one_that_loses_least() -> None:
    # Below 60 % of the deadline only the quick variant is taken, which is the better one here.
    assert fitted_share([record(ours=figures(95.0))]) in {s for s in SHARES if s < 0.6}


def test_intervals_hold_their_value_and_narrow_with_the_number() -> None:
    few, many = intervals.of_mean([0.0, 1.0] * 5), intervals.of_mean([0.0, 1.0] * 500)

    assert few.low <= few.value == 0.5 <= few.high
    assert many.high - many.low < 0.2 * (few.high - few.low)
    ratio = intervals.of_ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert ratio == pytest.approx((0.5, 0.5, 0.5))


def test_two_runs_are_compared_draw_by_draw() -> None:
    def run(*worths: float) -> adaptation.Record:
        draws = tuple(record(ours=figures(w), seed=i) for i, w in enumerate(worths))
        return adaptation.Record(set="development", master=None, draws=draws)

    rows = adaptation.compared(run(95.0, 85.0, 75.0), run(90.0, 80.0))

    assert rows[0].name == "adaptive: change of regret, n=2"
    assert rows[0].value == pytest.approx(-0.05)


def test_runs_without_a_common_draw_are_refused() -> None:
    one = adaptation.Record(set="fresh", master=1, draws=(record(ours=figures(1.0), seed=1),))
    other = adaptation.Record(set="fresh", master=2, draws=(record(ours=figures(1.0), seed=2),))

    with pytest.raises(SystemExit, match="no draw in common"):
        adaptation.compared(one, other)


def test_aims_are_met_or_missed_by_the_mean() -> None:
    draws = tuple(record(ours=figures(98.0, flaps=i), seed=i) for i in range(6))
    rows = {
        row.name: row
        for row in adaptation.rows_of(adaptation.Record(set="fresh", master=7, draws=draws))
    }

    assert rows["mean regret over the best known"].met is True
    assert rows["loss over that of the engineer"].value == pytest.approx(0.1)
    assert rows["flaps"].value == pytest.approx(5.0)
    assert rows["flaps"].met is False
    assert rows["deadlines missed over those of ewma"].met is False


def test_few_draws_are_held_against_no_aim() -> None:
    draws = tuple(record(ours=figures(98.0), seed=i) for i in range(adaptation.FEWEST - 1))

    rows = adaptation.rows_of(adaptation.Record(set="fresh", master=7, draws=draws))

    assert all((row.aim, row.met) == ("", None) for row in rows)
    assert "flaps" in {row.name for row in rows}


def test_a_run_of_few_draws_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    draws = (record(ours=figures(98.0)),)
    path.write_bytes(msgspec.json.encode(adaptation.Record(set="fresh", master=7, draws=draws)))

    assert adaptation.command(["--load", str(path), "--check"]) == 0

    assert "fewer than 5 draws of a family" in capsys.readouterr().err


def test_a_file_of_something_else_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("judged") / "other.json"
    path.write_text("{}")

    with pytest.raises(SystemExit, match="name a file that --save wrote"):
        adaptation.read(path)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--draws", "0"], "--draws is not 1 or more"),
        (["--set", "validation", "--draws", "101"], "the validation set has 100 seeds, not 101"),
        (["--set", "development", "--seed", "7"], "--seed is for --set fresh"),
        (["--save", "/nowhere/run.json"], "--save: cannot write /nowhere/run.json: No such file"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        adaptation.command(arguments)

    assert fault in capsys.readouterr().err
