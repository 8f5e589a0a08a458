"""How long a rollout would take, stage by stage.

Rules:
- Devices activate a release in its windows, by their own clocks; the plan has the controller's.
  What is fetched before a window opens still counts after it: the time is the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from controller.domain.rollout_plan import EarlierInstalls, Plan, stage_s
from controller.domain.rollout_view import StageSpec
from controller.rollout_schemas import RolloutRequest
from controller.services import stage_checks
from wire import windows


def of_stages(
    request: RolloutRequest,
    specs: Sequence[StageSpec],
    planned: Plan,
    earlier: EarlierInstalls | None,
    *,
    begins: datetime,
) -> list[tuple[float | None, float | None]]:
    """Return how long each stage takes by the median of earlier installs, and by slow ones.

    Args:
        request: The rollout.
        specs: Its stages.
        planned: Which devices start in each.
        earlier: How long earlier installs took; None if that is not known.
        begins: Local time when it begins.
    """
    if earlier is None:
        return [(None, None)] * len(specs)
    expected, slow = _Course(request, begins), _Course(request, begins)
    times: list[tuple[float | None, float | None]] = []
    begun = 0
    for stage, spec in zip(planned.stages, specs, strict=True):
        took = partial(
            stage_s,
            stage,
            planned.control if stage.number == len(specs) else (),
            max_in_flight=request.max_in_flight,
            soak_s=request.soak_s if spec.soak_s is None else spec.soak_s,
            rate=stage_checks.start_rate(request.rate),
            begun=begun,
        )
        first_s = 0.0 if spec.shadow is None else spec.shadow.for_s
        is_busy = any(not device.runs_it for device in stage.devices)
        times.append(
            (
                expected.after(partial(took, each_s=earlier.median_s), first_s, is_busy=is_busy),
                slow.after(partial(took, each_s=earlier.slow_s), first_s, is_busy=is_busy),
            )
        )
        begun += len(stage.devices)
    return times


def opens_in_s(request: RolloutRequest, at: datetime) -> float | None:
    """Return when the first window of a rollout opens; None if it has none."""
    return windows.opens_in_s(_of(request), at) if request.windows else None


def _of(request: RolloutRequest) -> list[windows.Window]:
    return [each for text in request.windows if (each := windows.parse_window(text))]


class _Course:
    """The time at which each stage begins."""

    def __init__(self, request: RolloutRequest, begins: datetime) -> None:
        self._windows = _of(request)
        self._now = begins

    def after(self, took: Callable[[], float], first_s: float, *, is_busy: bool) -> float:
        """Go on by a stage, and return how long it takes: its shadow first, then the window."""
        begins = self._now + timedelta(seconds=first_s)
        wait_s = windows.opens_in_s(self._windows, begins) if is_busy else 0.0
        stage_takes_s = first_s + wait_s + took()
        self._now += timedelta(seconds=stage_takes_s)
        return stage_takes_s
