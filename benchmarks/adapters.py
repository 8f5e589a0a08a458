"""What an adapter costs over the bare runtime, per call, with one thread.

The peer is the fastest documented way of calling the runtime's own Python API, with inputs and
outputs bound beforehand: it checks nothing, copies nothing, and gives nobody an answer to keep.
Then, where there is one, comes the way that an application calls it which binds nothing. Ours and
the other call take turns in random order in one process. In each round all are loaded anew, for
where a model happens to lie in memory changes its time by more than an adapter does.

The ResNet-20 needs the folder of models that EDGEFLEET_MODELS names; LiteRT needs the environment
of onnx2tf (`fleet tool install onnx2tf`). What is not there is not run, and standard error says so.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.harness import Row, against, alone, main
from benchmarks.runtimes.bare import LOADS, Bare
from benchmarks.runtimes.models import FILES, Forms, build, convolutions
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session

ROOT: Final = Path(__file__).resolve().parents[1]
MODELS: Final = Path(os.environ.get("EDGEFLEET_MODELS", str(ROOT.parent / "shared" / "models")))
AIM_RATIO: Final = 1.02
"""Where the bare call takes `LONG_MS` or more."""

AIM_US: Final = 10.0
"""Where it takes less."""

LONG_MS: Final = 1.0
NS_PER_MS: Final = 1e6
US_PER_MS: Final = 1e3
WARM_CALLS: Final = 20


def measure(quick: bool) -> list[Row]:
    """Build each model for each runtime and measure it.

    Args:
        quick: Fewer and shorter rounds, and no ResNet-20.

    Returns:
        Two or three rows for each model and runtime.
    """
    rounds, round_s = (5, 0.2) if quick else (9, 0.3)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        models = {"digits": ROOT / "examples" / "digits" / "digits.onnx"}
        residual = MODELS / "cifar10" / "cifar_resnet20.onnx"
        if residual.is_file() and not quick:
            models["ResNet-20"] = residual
        models["8 convolutions"] = convolutions(folder / "convolutions.onnx")
        built = {name: build(path, folder / path.stem) for name, path in models.items()}
        for name, forms in built.items():
            for runtime in forms.runtimes:
                rows += _rows(f"{name}, {runtime}", forms, runtime, rounds, round_s)
    return rows


class Medians(NamedTuple):
    """What calls took in a round, in milliseconds."""

    ours: float
    bare: float
    over_usual: float | None
    """Ours less the usual way, in turns of their own: a third call would disturb the other two."""


def _rows(name: str, forms: Forms, runtime: str, rounds: int, round_s: float) -> list[Row]:
    played = [_round(forms, runtime, round_s) for _ in range(rounds)]
    bare = played[0][1]
    ours, theirs = [m.ours for m, _ in played], [m.bare for m, _ in played]
    is_long = statistics.median(theirs) >= LONG_MS
    rows = [
        against(
            name, ours, theirs, unit="ms", peer=bare.how, at_most=AIM_RATIO if is_long else None
        ),
        alone(
            f"{name}: over the bare call", [(m.ours - m.bare) * US_PER_MS for m, _ in played],
            unit="us", at_most=None if is_long else AIM_US,
        ),
    ]  # fmt: skip
    if bare.usual is not None:
        over_us = [m.over_usual * US_PER_MS for m, _ in played if m.over_usual is not None]
        rows.append(alone(f"{name}: over {bare.usual_how}", over_us, unit="us"))
    return rows


def _round(forms: Forms, runtime: str, round_s: float) -> tuple[Medians, Bare]:
    """Load all and let their calls take turns.

    Returns:
        The median times, and how the others are called.

    Raises:
        RuntimeError: They do not give the same answer.
    """
    sample = forms.sample()
    session = open_session(forms.folder, forms.info(runtime), Limits(threads=1))
    bare = LOADS[runtime](forms.folder / FILES[runtime], sample, forms.outputs)
    infer = session.infer

    def ours() -> object:
        return infer(sample)

    for _ in range(WARM_CALLS):
        ours()
        bare.call()
    for answer, theirs in zip(infer(sample).values(), bare.answers(), strict=True):
        if not np.array_equal(answer, theirs):
            raise RuntimeError(f"{runtime} answers otherwise without its adapter")
    our_ms, bare_ms = _in_turns(ours, bare.call, round_s)
    over_usual_ms = None
    if bare.usual is not None:
        again_ms, usual_ms = _in_turns(ours, bare.usual, round_s)
        over_usual_ms = again_ms - usual_ms
    session.close()
    return Medians(our_ms, bare_ms, over_usual_ms), bare


def _in_turns(
    ours: Callable[[], object], theirs: Callable[[], object], round_s: float
) -> tuple[float, float]:
    """Return the median times of two calls, in milliseconds."""
    now = time.perf_counter_ns
    our_ns: list[int] = []
    their_ns: list[int] = []
    theirs()
    gc.collect()
    end_s = time.perf_counter() + round_s
    while time.perf_counter() < end_s:
        for is_ours in random.sample((True, False), 2):
            if is_ours:
                began = now()
                ours()
                our_ns.append(now() - began)
            else:
                began = now()
                theirs()
                their_ns.append(now() - began)
    return statistics.median(our_ns) / NS_PER_MS, statistics.median(their_ns) / NS_PER_MS


if __name__ == "__main__":
    sys.exit(main("Adapters over bare runtimes, one thread", measure))
