"""The steps of a plan: those that make a candidate, check it and measure it.

Rules:
- Steps that make files read calibration and tuning samples. Steps that judge read only the samples
  of the gate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from packager.plan.model_steps import unchanged_model
from packager.plan.recipes import PREPARE, Recipe
from packager.plan.runtimes import Runtimes
from packager.plan.step_names import (
    ANSWERS_ROLE,
    DATA,
    GOLDEN,
    LAYERS,
    OTHERS_ROLE,
    REFERENCE,
    TUNING_DATABASE,
    anchors_input,
    boxes_option,
    metric_input,
)
from packager.plan.targets import Target
from packager.plan.values import Candidate, PlanInputs, PlanSettings, Step
from wire.codec import to_builtins
from wire.package.performance import Performance
from wire.package.processing import Postprocessing

PROFILE_S: Final = 2.0
MIN_PROFILED_RUNS: Final = 5
MAX_PROFILED_RUNS: Final = 200
"""A profile needs few runs to show where the time goes; a large model has many events in each."""
_TUNE: Final = "tune"


def build_name(recipe: Recipe, target: Target | None) -> str:
    """Return the name of the step that makes a recipe's files."""
    if recipe.kind == PREPARE:
        return PREPARE
    return f"build-{recipe.name}" + (f"-{target.name}" if target else "")


def build_steps(recipe: Recipe, target: Target | None, given: PlanInputs) -> tuple[Step, ...]:
    """Return the steps that make a recipe's files, those of its base first.

    Args:
        recipe: The recipe.
        target: The processor, for a compiled one.
        given: What the plan depends on.

    Returns:
        The steps; none where the prepared model is the variant.
    """
    if recipe.kind == PREPARE:
        return ()
    settings = given.settings
    base = base_of(recipe, given)
    before = build_steps(base, None, given) if base else ()
    model = build_name(base, None) if base else PREPARE
    inputs = {"model": model, "prepared": PREPARE}
    options: dict[str, Any] = dict(recipe.options)
    if recipe.data or recipe.parity:
        inputs["data"] = DATA
    if "tuning" in recipe.data:
        inputs |= {"reference": REFERENCE, **metric_input(settings)}
        options |= {
            **boxes_option(settings),
            "min_retention": settings.min_retention,
            "trials": settings.repair_trials,
            "seconds": settings.repair_s,
        }
    if target is not None:
        options["target"] = to_builtins(target)
        if given.runtimes.named(recipe.runtime).tunes:
            if settings.tuning_trials:
                before = (*before, _tuning_step(recipe, target, model, settings))
                inputs["database"] = before[-1].name
            elif settings.tuned:
                inputs["database"] = TUNING_DATABASE
    name = build_name(recipe, target)
    step = Step(
        name=name, kind=recipe.kind, inputs=inputs, options=options, tools=_tools(recipe, target)
    )
    return (*before, step)


def base_of(recipe: Recipe, given: PlanInputs) -> Recipe | None:
    """Return the recipe to start from; None without one, or if the model has its format already."""
    base = given.runtimes.recipes.get(recipe.base)
    return base if base is not None and given.facts.kind in base.sources else None


def evaluate_step(candidate: Candidate, given: PlanInputs) -> Step:
    """Return the step that runs a candidate on the evaluation data."""
    settings = given.settings
    options: dict[str, Any] = {"info": to_builtins(candidate.info), **boxes_option(settings)}
    kind = "evaluate"
    if candidate.target is not None and candidate.emulated:
        kind = f"emulate-{candidate.info.runtime}"
        options |= {"target": to_builtins(candidate.target), "seconds": settings.emulation_s}
    return Step(
        name=candidate.evaluate,
        kind=kind,
        inputs={
            "variant": candidate.build,
            "data": DATA,
            "reference": REFERENCE,
            **metric_input(settings),
        },
        options=options,
        tools=given.runtimes.named(candidate.info.runtime).packages,
    )


def other_kernels_steps(
    kept: tuple[Candidate, ...], planned: tuple[Step, ...], runtimes: Runtimes
) -> tuple[Step, ...]:
    """Return the steps that evaluate the variants of a package with their runtimes' other kernels.

    Args:
        kept: Those variants.
        planned: Steps, among them the evaluation of each.
        runtimes: What other kernels there are.

    Returns:
        A step for each variant whose runtime has other kernels.
    """
    evaluated = {step.name: step for step in planned}
    steps: list[Step] = []
    for candidate in kept:
        other = runtimes.named(candidate.info.runtime).other_kernels
        if not other or other.items() <= candidate.info.options.items():
            continue
        step = evaluated[candidate.evaluate]
        options = {**candidate.info.options, **other}
        info = msgspec.structs.replace(candidate.info, options=options)
        steps.append(
            msgspec.structs.replace(
                step,
                name=candidate.evaluate_others,
                options={**step.options, "info": to_builtins(info)},
            )
        )
    return tuple(steps)


def measure_step(candidate: Candidate, threads: int, given: PlanInputs) -> Step:
    """Return the step that measures what a candidate costs."""
    unchanged, tools = unchanged_model(given)
    return Step(
        name=candidate.measure,
        kind="measure",
        inputs={"variant": candidate.build, "data": DATA, "reference": PREPARE},
        options={
            "info": to_builtins(candidate.info),
            "reference": to_builtins(unchanged),
            "threads": threads,
            "min_runs": given.settings.min_runs,
            "min_duration_s": given.settings.min_duration_s,
        },
        tools=tuple(
            dict.fromkeys((*given.runtimes.named(candidate.info.runtime).packages, *tools))
        ),
        quiet=True,
    )


def layers_step(candidate: Candidate, performance: Performance, given: Runtimes) -> Step:
    """Return the step that profiles a candidate by layer.

    Args:
        candidate: A candidate that was measured here.
        performance: Its figures: a profile has as many threads, and about `PROFILE_S` of runs.
        given: The runtimes.

    Returns:
        The step.
    """
    return Step(
        name=candidate.layers,
        kind=LAYERS,
        inputs={"variant": candidate.build, "data": DATA},
        options={"info": to_builtins(candidate.info), **profile_options(performance)},
        tools=given.named(candidate.info.runtime).packages,
        quiet=True,
    )


def profile_options(performance: Performance | None) -> dict[str, Any]:
    """Return how a variant with such figures is profiled: `threads` and `runs`."""
    if performance is None:
        return {"threads": 1, "runs": MIN_PROFILED_RUNS}
    wanted = int(PROFILE_S * 1000 / max(performance.latency_p50_ms, 1e-3))
    runs = min(max(wanted, MIN_PROFILED_RUNS), MAX_PROFILED_RUNS)
    return {"threads": performance.threads, "runs": runs}


def is_tuning(step: Step) -> bool:
    """Tell whether a step searches for schedules, which a tuning database keeps."""
    return step.kind.startswith(f"{_TUNE}-")


def golden_step(
    kept: tuple[Candidate, ...],
    *,
    others: Collection[str] = (),
    metric: str,
    declared: Mapping[str, Postprocessing] | None = None,
) -> Step:
    """Return the step that picks the golden samples of the variants that go into the package.

    Args:
        kept: Those variants.
        others: The names of those that devices may serve with their runtimes' other kernels.
        metric: The metric of the build.
        declared: The postprocessing that must work on their answers, by output.

    Returns:
        The step.
    """
    answers = {f"{ANSWERS_ROLE}{c.name}": c.evaluate for c in kept}
    answers |= {f"{OTHERS_ROLE}{c.name}": c.evaluate_others for c in kept if c.name in others}
    return Step(
        name=GOLDEN,
        kind=GOLDEN,
        inputs={
            "model": PREPARE,
            "data": DATA,
            "reference": REFERENCE,
            **answers,
            **anchors_input(declared or {}),
        },
        options={"metric": metric, "postprocessing": to_builtins(dict(declared or {}))},
        vital=True,
    )


def _tuning_step(recipe: Recipe, target: Target, model: str, settings: PlanSettings) -> Step:
    return Step(
        name=f"{_TUNE}-{recipe.name}-{target.name}",
        kind=f"{_TUNE}-{recipe.runtime}",
        inputs={"model": model, "prepared": PREPARE}
        | ({"database": TUNING_DATABASE} if settings.tuned else {}),
        options={"target": to_builtins(target), "trials": settings.tuning_trials},
        tools=_tools(recipe, target),
        quiet=True,
    )


def _tools(recipe: Recipe, target: Target | None) -> tuple[str, ...]:
    return (*recipe.tools, *((target.compiler,) if target else ()))
