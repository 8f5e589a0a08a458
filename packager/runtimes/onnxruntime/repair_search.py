"""Decides which groups of nodes a repair leaves in float, without running anything.

Pure: figures in, decisions out.

Rules:
- The search takes the group with the largest error first; if two have the same error, it takes the
  one that comes first in the graph.
- The number of groups in float doubles until the quality suffices. A binary search then finds the
  least number that suffices. This takes few trials, and no group stays in float without need.
- A group that was never measured comes last.

Source:
    NNCF, "Quantization with accuracy control", which puts layers back by rank in the same spirit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from runtime_adapters.protocol import Tensor, Tensors

MAX_SHARE: Final = 0.5
"""Share of the groups that may stay in float; with more the model is hardly smaller than float."""


class Group(msgspec.Struct, frozen=True):
    """Nodes that are quantized together, such as a convolution and its activation."""

    nodes: tuple[str, ...]


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What quantizing one group alone does to the answers."""

    nodes: tuple[str, ...]
    noise: float
    """Power of the error over power of the signal, summed over the outputs."""

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise, in decibels; infinite where nothing changed."""
        return math.inf if self.noise == 0.0 else -10.0 * math.log10(self.noise)


def rank(groups: Sequence[Group], noises: Mapping[Group, float]) -> tuple[Blame, ...]:
    """Order groups by their noise, the largest first.

    Args:
        groups: All groups, in the graph's order.
        noises: The noise of those that were measured.

    Returns:
        All groups, ranked.
    """
    blames = [Blame(nodes=g.nodes, noise=noises.get(g, 0.0)) for g in groups]
    return tuple(sorted(blames, key=lambda blame: -blame.noise))


def next_count(tried: Mapping[int, bool], most: int) -> int | None:
    """Return how many of the worst groups to leave in float next.

    Args:
        tried: Number of groups to whether the quality sufficed; 0 is one of the numbers.
        most: How many may stay in float.

    Returns:
        The number, or None when the search has ended.
    """
    passed = min((count for count, enough in tried.items() if enough), default=None)
    failed = max(count for count in tried if passed is None or count < passed)
    if passed is None:
        return None if failed >= most else min(max(1, 2 * failed), most)
    return None if passed - failed <= 1 else (passed + failed) // 2


def relative_noise(answers: Tensors, reference: Tensors) -> float:
    """Return the power of the error over the power of the signal, summed over the outputs.

    Args:
        answers: By output.
        reference: The same outputs in float.

    Returns:
        0.0 where all is equal; infinite where an answer is not a number.
    """
    return sum(_noise(answers[name], theirs) for name, theirs in reference.items())


def _noise(ours: Tensor, theirs: Tensor) -> float:
    usable = np.isfinite(theirs)
    signal = theirs[usable].astype(np.float64)
    error = ours[usable].astype(np.float64) - signal
    if not np.isfinite(error).all():
        return math.inf
    power = float(np.sum(signal**2))
    noise = float(np.sum(error**2))
    if noise == 0.0:
        return 0.0
    return noise / power if power else math.inf
