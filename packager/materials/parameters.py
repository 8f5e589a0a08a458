"""What a user asks of a build, as its provenance tells it.

Rules:
- What a user gives as a file is told by its role, what is a function by its name: no folder of the
  user's is told.
- What changes only where, when or how fast a build runs is left out, so that a rebuild elsewhere
  gives the same bytes. Figures of an earlier report (`--measurements`) are among that: the manifest
  has them, with the machine that measured them.
"""

from __future__ import annotations

from typing import Any, Final

from packager.callables import plain_name
from packager.judge.metrics import is_own
from packager.plan.step_names import (
    CALIBRATION,
    EVALUATION,
    POSTPROCESSING,
    PREPROCESSING,
    SOURCE,
    TRAINING,
    TUNING,
)
from packager.request import BuildRequest
from wire.codec import to_builtins

ROLES: Final = {
    "model": SOURCE,
    "evaluation": EVALUATION,
    "calibration": CALIBRATION,
    "tuning": TUNING,
    "preprocessing": PREPROCESSING,
    "postprocessing": POSTPROCESSING,
    "training": TRAINING,
}
"""Field of a request to the role of what it names."""

PLAIN: Final = (
    "float_only", "states", "prune", "apart_over_bytes", "gates", "search", "keep", "drop_beaten",
    "repair_trials", "tune", "min_runs", "min_duration_s", "emulation_s", "licence",
)  # fmt: skip
"""Fields that are told as they are."""

LEFT_OUT: Final = (
    "output", "cache", "tuning_database", "measurements", "remeasure", "profile_layers", "key",
    "force", "executor", "jobs", "limits",
)  # fmt: skip
"""Fields that are not told. What a tuning database holds is told by its digest."""


def parameters(request: BuildRequest, name: str, functions: dict[str, str]) -> dict[str, Any]:
    """Return what a user asked for.

    Args:
        request: The build.
        name: Of the package.
        functions: Roles that are functions of the user's, with their plain names.

    Returns:
        Values of JSON by the names of the request's fields. A value that is a role stands for the
        file of that role.
    """
    given = {field: role for field, role in ROLES.items() if getattr(request, field)}
    metric = request.metric
    return {
        "name": name,
        **({"version": request.version} if request.version else {}),
        **{field: functions.get(role, role) for field, role in given.items()},
        "profiles": [profile.name for profile in request.profiles],
        "metric": plain_name(metric) if is_own(metric) else metric,
        **{field: to_builtins(getattr(request, field)) for field in PLAIN},
    }
