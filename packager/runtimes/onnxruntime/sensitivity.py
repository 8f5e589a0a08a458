"""Repairs int8 for ONNX Runtime: finds the layers that cost accuracy and keeps them in float.

The repair quantizes each group of nodes alone; the error of the answers on the tuning samples tells
what the group costs. Then the groups with the largest errors stay in float, as many as are needed.

Rules:
- The repair calibrates once; a trial inserts quantizers and runs the tuning samples.
- The tuning samples steer the result, so they cannot judge it.
- A budget of trials and seconds bounds the search; what it has found by then is the result.
- The file equals the one that `quantize_static` writes with the same nodes excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from packager.runtimes.common.onnx_files import ranks_in, save, session_of, tidy
from packager.runtimes.onnxruntime import qdq
from packager.runtimes.onnxruntime.repair_search import (
    MAX_SHARE,
    Blame,
    Group,
    next_count,
    rank,
    relative_noise,
)
from packager.samples.store import joined, sample, spread
from packager.sources.onnx_model import model_bytes
from packager.tools.quiet import tool
from runtime_adapters.protocol import Tensors
from wire.clock import Clock

Quality = Callable[[Tensors, list[int]], float]
"""Quality of the answers, by output, to the tuning samples at these indices; larger is better."""

_ACTIVATIONS: Final = frozenset({"Relu", "Clip"})
_QUANTIZERS: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair must reach, and when it stops trying."""

    retention: float
    """Share of the float model's quality to keep, on the tuning samples."""

    margin: float = 0.002
    """Required in addition: the tuning samples favour what they have chosen."""

    max_trials: int = 200
    """Runs of a quantized model, those that rank the groups included."""

    max_seconds: float = 300.0
    ranking_samples: int = 64
    """Number of tuning samples that rank the groups; the error of the answers needs few."""


class FoundRepair(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair found and what it cost."""

    excluded: tuple[str, ...]
    """Names of the nodes that stay in float."""

    groups: int
    reached: bool
    trials: int
    seconds: float
    reference: float
    """Quality of the float model on the tuning samples."""

    before: float
    """Quality with everything quantized."""

    after: float
    """Quality with the excluded nodes in float."""

    ranking: tuple[Blame, ...]
    """The groups, the worst first; empty where plain int8 sufficed."""


def repair(
    model: Path,
    calibration: Tensors,
    tuning: Tensors,
    quality: Quality,
    options: dict[str, Any],
    goal: Goal,
    target: Path,
    *,
    clock: Clock,
) -> FoundRepair:
    """Quantize statically, leaving in float what the tuning samples show to cost most.

    Args:
        model: The prepared float model.
        calibration: Calibration samples by input.
        tuning: Tuning samples by input, none of them in a gate.
        quality: Tells how good answers are.
        options: As for `quantize_static`; nodes that they exclude stay in float in every trial.
        goal: What to reach and what it may cost.
        target: The file to write: the best that was found, whether the goal was reached or not.
        clock: For the time that it takes.

    Returns:
        What was found.

    Raises:
        StepError: ONNX Runtime's tools failed.
    """
    start_s = clock.monotonic_s()
    prepared = qdq.prepare(model)
    trial = _Trial(prepared, qdq.calibrate(prepared, calibration, options), options, tuning)
    everything = list(range(trial.samples))
    reference = quality(trial.float_answers(everything), everything)
    enough = reference * goal.retention + abs(reference) * goal.margin

    def spent() -> bool:
        late = clock.monotonic_s() - start_s >= goal.max_seconds
        return late or trial.count >= goal.max_trials

    def measure(excluded: Sequence[str]) -> float:
        return quality(trial.answers(trial.build(exclude=excluded), everything), everything)

    qualities = {0: measure(())}
    ranking: tuple[Blame, ...] = ()
    if qualities[0] < enough:
        ranking = _rank(
            trial, groups_of(prepared), spread(trial.samples, goal.ranking_samples), spent
        )
        most = int(MAX_SHARE * len(ranking))
        while not spent():
            count = next_count({k: v >= enough for k, v in qualities.items()}, most)
            if count is None:
                break
            qualities[count] = measure(_worst(ranking, count))
    best = _best(qualities, enough)
    excluded = _worst(ranking, best)
    save(trial.build(exclude=excluded), target)
    return FoundRepair(
        excluded=excluded,
        groups=best,
        reached=qualities[best] >= enough,
        trials=trial.count,
        seconds=clock.monotonic_s() - start_s,
        reference=reference,
        before=qualities[0],
        after=qualities[best],
        ranking=ranking,
    )


def groups_of(model: Any) -> tuple[Group, ...]:  # noqa: ANN401 - onnx is untyped
    """Return the nodes that can be quantized, each with an activation that is its only reader.

    Args:
        model: A prepared model.

    Returns:
        The groups, in the graph's order.
    """
    known = set(qdq.quantizable_operators())
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {output.name for output in model.graph.output}
    found: list[Group] = []
    taken: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in known or node.name in taken:
            continue
        names = [node.name]
        followers = readers.get(node.output[0], [])
        if len(followers) == 1 and node.output[0] not in outputs:
            names += [f.name for f in followers if f.op_type in _ACTIVATIONS]
        taken.update(names)
        found.append(Group(tuple(names)))
    return tuple(found)


class _Trial:
    """Runs the tuning samples through models that differ in what is quantized."""

    def __init__(
        self,
        prepared: Any,  # noqa: ANN401 - onnx is untyped
        ranges: Any,  # noqa: ANN401 - onnxruntime is untyped
        options: dict[str, Any],
        tuning: Tensors,
    ) -> None:
        self._prepared = prepared
        self._ranges = ranges
        self._options = options
        self._tuning = tuning
        self._always = tuple(options.get("exclude", ()))
        self.samples = len(next(iter(tuning.values())))
        self.count = 0

    def build(self, *, only: Sequence[str] = (), exclude: Sequence[str] = ()) -> Any:  # noqa: ANN401
        """Return the model with only these nodes quantized, or all but those."""
        return qdq.insert(
            self._prepared,
            self._ranges,
            self._options,
            only=only,
            exclude=(*self._always, *exclude),
        )

    def float_answers(self, indices: Sequence[int]) -> Tensors:
        """Return the float model's answers."""
        return self._run(self._prepared, indices)

    def answers(self, built: Any, indices: Sequence[int]) -> Tensors:  # noqa: ANN401 - onnx is untyped
        """Return a quantized model's answers."""
        self.count += 1
        tidy(built)
        return self._run(built, indices)

    def _run(self, model: Any, indices: Sequence[int]) -> Tensors:  # noqa: ANN401 - onnx is untyped
        with tool("onnxruntime"):
            session = session_of(model_bytes(model))
            names = [output.name for output in session.get_outputs()]
            ranks = ranks_in(session)
            rows = [session.run(names, sample(self._tuning, index, ranks)) for index in indices]
            return {
                name: joined([row[position] for row in rows]) for position, name in enumerate(names)
            }


def _rank(
    trial: _Trial, groups: Sequence[Group], indices: Sequence[int], spent: Callable[[], bool]
) -> tuple[Blame, ...]:
    """Quantize and measure each group alone; leave out a group that gets no quantizers."""
    reference = trial.float_answers(indices)
    noises: dict[Group, float] = {}
    found: list[Group] = []
    for group in groups:
        built = trial.build(only=group.nodes)
        if not any(node.op_type in _QUANTIZERS for node in built.graph.node):
            continue
        found.append(group)
        if not spent():
            noises[group] = relative_noise(trial.answers(built, indices), reference)
    return rank(found, noises)


def _worst(ranking: Sequence[Blame], count: int) -> tuple[str, ...]:
    return tuple(name for blame in ranking[:count] for name in blame.nodes)


def _best(qualities: dict[int, float], enough: float) -> int:
    """Return the least number of groups that suffices, else the number with the best quality."""
    sufficing = [count for count, value in qualities.items() if value >= enough]
    if sufficing:
        return min(sufficing)
    return max(qualities, key=lambda count: (qualities[count], -count))
