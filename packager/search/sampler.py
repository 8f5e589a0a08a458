"""Chooses what a search tries next. The door to Optuna.

Rules:
- No point is tried twice.
- Equal points, seed and figures give equal choices. Figures that are measured anew may differ, and
  so may then what `tpe` chooses.

Source:
    J. Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011 (TPE); Optuna's
    `TPESampler`, also for several objectives and constraints.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import msgspec

from packager.errors import BuildError
from packager.search.space import Point

if TYPE_CHECKING:
    import optuna

Method = Literal["exhaustive", "random", "tpe"]
METHODS: Final[tuple[str, ...]] = get_args(Method)
EXTRA: Final = "packager-search"
MAX_REPEATS: Final = 50
"""So often a sampler may propose what was tried already; then any untried point is taken."""

STARTUP: Final = 10
"""TPE draws as many points at random first, Optuna's default, but at most a third of the cap."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What a search learns of a point: less is better."""

    losses: tuple[float, ...]
    """By goal, the share that the figure is worse than the reference's."""

    misses: tuple[float, ...]
    """By limit, how far it is missed; not above 0.0 where it is kept."""


class Sampler(Protocol):
    """Chooses points."""

    def ask(self) -> Point | None:
        """Return a point that was not returned before; None after the last."""
        ...

    def tell(self, point: Point, score: Score) -> None:
        """Take in what a point gave."""
        ...


def open_sampler(
    method: Method, points: Sequence[Point], *, goals: int, cap: int, seed: int
) -> Sampler:
    """Return a sampler.

    Args:
        method: How it chooses.
        points: The space.
        goals: How many losses a score has.
        cap: How many points will be tried.
        seed: Equal seeds give equal choices.

    Returns:
        The sampler.

    Raises:
        BuildError: Optuna is needed and not installed.
    """
    if method == "exhaustive":
        return _InOrder(points)
    return _Sampled(method, points, goals=goals, cap=cap, seed=seed)


def check_sampler(method: Method) -> None:
    """Refuse a method whose library is not installed.

    Raises:
        BuildError: It is not.
    """
    if method != "exhaustive":
        _load()


def _load() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as exc:
        raise BuildError(
            "Optuna is not installed here, and --search random and tpe need it",
            remedy=f"pip install 'edgefleet[{EXTRA}]', or use --search exhaustive",
        ) from exc


class _InOrder:
    """Returns all points in their order."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = iter(points)

    def ask(self) -> Point | None:
        return next(self._points, None)

    def tell(self, point: Point, score: Score) -> None:
        """Learn nothing."""


class _Sampled:
    """Walks the choices of a point one after another; Optuna makes each."""

    def __init__(
        self, method: Method, points: Sequence[Point], *, goals: int, cap: int, seed: int
    ) -> None:
        _load()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
        if method == "tpe":
            startup = max(1, min(STARTUP, cap // 3))
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
        self._study = optuna.create_study(directions=["minimize"] * goals, sampler=sampler)
        self._left = {point.choices: point for point in points}
        self._values: dict[str, list[str]] = {}
        for point in points:
            for name, value in point.choices:
                known = self._values.setdefault(name, [])
                if value not in known:
                    known.append(value)
        self._paths = {point.choices for point in points}
        self._scores: dict[tuple[tuple[str, str], ...], Score] = {}
        self._running: dict[str, optuna.Trial] = {}
        self._random = random.Random(seed)  # noqa: S311 - a choice, no secret

    def ask(self) -> Point | None:
        if not self._left:
            return None
        for _ in range(MAX_REPEATS):
            trial = self._study.ask()
            path = self._walk(trial)
            if path in self._left:
                return self._take(path, trial)
            score = self._scores.get(path)
            if score is not None:  # to be told it again is what keeps the sampler from repeating
                self._finish(trial, score)
        path = self._random.choice(list(self._left))
        self._study.enqueue_trial(dict(path))
        trial = self._study.ask()
        self._walk(trial)
        return self._take(path, trial)

    def tell(self, point: Point, score: Score) -> None:
        self._scores[point.choices] = score
        self._finish(self._running.pop(point.name), score)

    def _take(self, path: tuple[tuple[str, str], ...], trial: optuna.Trial) -> Point:
        point = self._left.pop(path)
        self._running[point.name] = trial
        return point

    def _walk(self, trial: optuna.Trial) -> tuple[tuple[str, str], ...]:
        """Let the trial make each choice that the ones before lead to."""
        path: tuple[tuple[str, str], ...] = ()
        while path not in self._paths:
            following = next(p for p in self._paths_from(path))
            name = following[len(path)][0]
            allowed = {p[len(path)][1] for p in self._paths_from(path)}
            value = trial.suggest_categorical(name, self._values[name])
            if value not in allowed:
                return (*path, (name, value))
            path = (*path, (name, value))
        return path

    def _paths_from(self, path: tuple[tuple[str, str], ...]) -> list[tuple[tuple[str, str], ...]]:
        return sorted(p for p in self._paths if p[: len(path)] == path and len(p) > len(path))

    def _finish(self, trial: optuna.Trial, score: Score) -> None:
        for number, miss in enumerate(score.misses):
            trial.set_constraint(str(number), miss)
        self._study.tell(trial, score.losses)
