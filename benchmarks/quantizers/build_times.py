"""How long builds take, ours beside those of other tools.

Rules:
- A ratio compares the time per model made. Many models share the start of one build, which favours
  who makes more.
- The total is told beside it, without a ratio: one build makes fourteen models where another makes
  one.
- Each build runs once.
- Ours measures and judges each model that it makes, and so does Olive. ONNX Runtime and NNCF only
  make one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.harness import Row, against

MAX_TIME_RATIO: Final = 0.5


class Work(NamedTuple):
    """What a tool did: its name, or the runtimes of our build, and how long it took."""

    who: str
    seconds: float
    models: int

    @property
    def text(self) -> str:
        """Who made how many models."""
        return f"{self.who}, {self.models} model{'s' if self.models > 1 else ''}"


def beside_one(task: str, ours: Work, peer: Work) -> list[Row]:
    """Compare a build of all runtimes with a tool that makes one model.

    Args:
        task: The model's name.
        ours: Our build.
        peer: The other tool's.

    Returns:
        The row per model and the row of the totals.
    """
    return [_per_model(task, ours, peer, at_most=None), _total(task, ours, peer)]


def beside_search(task: str, ours: Work, whole: Work, peer: Work) -> list[Row]:
    """Compare builds with a tool that searches among models.

    Args:
        task: The model's name.
        ours: Our build for the runtime that the tool makes models for.
        whole: Our build for all runtimes.
        peer: The tool's search.

    Returns:
        The rows, the one with an aim first.
    """
    return [
        _per_model(task, ours, peer, at_most=MAX_TIME_RATIO),
        _total(task, ours, peer),
        _total(task, whole, peer),
    ]


def _per_model(task: str, ours: Work, peer: Work, *, at_most: float | None) -> Row:
    return against(
        f"{task}: build for {ours.text}, per model",
        [ours.seconds / ours.models],
        [peer.seconds / peer.models],
        unit="s per model",
        peer=peer.text,
        at_most=at_most,
    )


def _total(task: str, ours: Work, peer: Work) -> Row:
    return Row(
        name=f"{task}: build for {ours.text}, total",
        value=ours.seconds,
        unit="s",
        peer=peer.text,
        peer_value=peer.seconds,
    )
