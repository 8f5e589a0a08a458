"""Writes every figure of the selector's benchmark, and a plot of each trace.

`python -m benchmarks.policies.page docs/selector`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from agent.replay.trace_file import load_trace, shipped_names
from benchmarks.policies.outcomes import POLICY_NAMES, Outcome, outcomes, table

mpl.use("Agg")
from matplotlib import pyplot as plt

INTRODUCTION: Final = """# What the policies are worth

`python -m benchmarks.policies.page docs/selector` writes this page. All figures are simulated,
with eight synthetic traces (docs/traces.md) and two sets of variants. One set is a classifier in
three forms with made-up figures (`agent/replay/shipped_traces/example_variants.json`); the other
is three detectors with published latency and accuracy (`benchmarks/policies/detectors.json`).

A simulation cannot show real workers next to real processes. `benchmarks/selector_live.py`
measures them; in that benchmark neither heat nor battery matters.

- Worth: the answers that came in time from a board below its severe heat, each multiplied by the
  retention of its variant, minus one for each switch, divided by all requests.
- Regret: the share of the oracle's worth that the policy lost. The oracle knows the whole trace.
  Its states are binned, so its result is a little below the optimum.
- `rules` looks only at thresholds, so it does not react to a latency that is too long.
- The static variants never switch. Only after the trace can one say which of them was the right
  one.

"""
STYLES: Final = {"adaptive": "tab:blue", "rules": "tab:orange"}
SIZE: Final = (9.0, 6.4)


def write(folder: Path) -> None:
    """Replay everything and write the page."""
    folder.mkdir(parents=True, exist_ok=True)
    found = outcomes([load_trace(name) for name in shipped_names()])
    pictures = []
    for outcome in found:
        name = f"{outcome.variants}-{outcome.trace.header.name}.png"
        _plot(outcome, folder / name)
        pictures.append(f"## {outcome.variants}: {outcome.trace.header.name}\n\n![]({name})\n")
    text = INTRODUCTION + table(found) + "\n" + "\n".join(pictures)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _plot(outcome: Outcome, path: Path) -> None:
    header = outcome.trace.header
    figure, (heat, variant, lost) = plt.subplots(
        3, 1, figsize=SIZE, sharex=True, height_ratios=[2, 2, 2], layout="constrained"
    )
    hours = outcome.trace.duration_s > 7200  # noqa: PLR2004 - two hours in seconds are hard to read
    unit_s = 3600.0 if hours else 1.0
    times = [tick.at_s / unit_s for tick in outcome.trace.ticks]
    for kind in POLICY_NAMES:
        steps = outcome.replays[kind].steps
        heat.plot(times, [s.temperature_c for s in steps], color=STYLES[kind], label=kind)
    heat.axhline(header.board.limits.severe_c, color="tab:red", ls="--", lw=0.8, label="severe")
    heat.set_ylabel("temperature (C)")
    heat.legend(loc="upper left", fontsize=8)
    _plot_variants(outcome, variant, times)
    _plot_lost(outcome, lost, times)
    lost.set_xlabel("hours" if hours else "seconds")
    heat.set_title(f"{header.name} ({header.origin}), variants: {outcome.variants}", fontsize=10)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


def _plot_variants(outcome: Outcome, axes: Any, times: list[float]) -> None:  # noqa: ANN401
    names = [n for n in outcome.replays if n not in POLICY_NAMES][::-1]
    places = {name: float(i) for i, name in enumerate(names)}
    served = {kind: [s.variant for s in outcome.replays[kind].steps] for kind in POLICY_NAMES}
    best = outcome.best.variants if outcome.best else ()
    for shift, (kind, row) in enumerate([("oracle", best), *served.items()]):
        heights = [float("nan") if v is None else places[v] + 0.12 * shift for v in row]
        axes.step(times, heights, where="post", lw=1.2, color=STYLES.get(kind, "0.5"), label=kind)
    axes.set_yticks([places[n] for n in names], names)
    axes.set_ylim(-0.4, len(names) - 0.4)
    axes.legend(loc="lower left", fontsize=8, ncols=3)


def _plot_lost(outcome: Outcome, axes: Any, times: list[float]) -> None:  # noqa: ANN401
    """Draw what was lost so far: requests less the worth of their answers."""
    best = outcome.best_alone
    colours = STYLES | {best: "tab:green"}
    for kind, colour in colours.items():
        total, sums = 0.0, []
        for step in outcome.replays[kind].steps:
            total += step.served.requests - (step.served.worth or 0.0)
            sums.append(total)
        axes.plot(times, sums, color=colour, label=f"{kind} alone" if kind == best else kind)
    axes.set_ylabel("answers lost so far")
    axes.legend(loc="upper left", fontsize=8)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
