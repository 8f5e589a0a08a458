"""Plans a build: makes ordered steps from facts about the model and the profiles.

A candidate is one recipe of a runtime; a compiled recipe gives one candidate per processor. The
planner knows no recipe and no runtime by name.

Rules:
- The planner is pure: it uses no files, no clock and no tools, and equal arguments give equal
  plans.
- The plan also lists what cannot be built, with the reason.
- The build makes, checks and measures a candidate once, even if several profiles share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from packager.plan.bodies import bodies_obstacles
from packager.plan.figures import ModelFacts
from packager.plan.model_steps import data_step, reference_step
from packager.plan.recipes import PREPARE, Recipe, files_of
from packager.plan.runtimes import Runtimes
from packager.plan.steps import (
    base_of,
    build_name,
    build_steps,
    evaluate_step,
    measure_step,
)
from packager.plan.targets import Target, is_such, target_of
from packager.plan.texts import unreadable
from packager.plan.values import (
    Candidate,
    Host,
    Impossible,
    Plan,
    PlanInputs,
    PlanSettings,
    Repair,
    Step,
)
from wire.package.variant import Requirements, VariantInfo
from wire.profile import DeviceProfile

_QUANTIZED: Final = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul"}
)
_ONNX_NAMES: Final = frozenset({"Conv", "Gemm", "MatMul"})
"""Names of operators in reasons; other formats have other names for them."""

_VNNI: Final = frozenset({"avx512_vnni", "avx_vnni"})


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe for some profiles; the profiles of a compiled recipe share a processor."""

    recipe: Recipe
    target: Target | None
    candidate: Candidate


def make_plan(
    facts: ModelFacts,
    profiles: tuple[DeviceProfile, ...],
    *,
    runtimes: Runtimes,
    host: Host,
    settings: PlanSettings,
) -> Plan:
    """Plan a build.

    Args:
        facts: What is known of the model.
        profiles: The kinds of devices to build for, each name once.
        runtimes: What can be built.
        host: What the building machine has.
        settings: What the user asked for.

    Returns:
        The plan; without candidates when there are none.
    """
    given = PlanInputs(facts=facts, host=host, settings=settings, runtimes=runtimes)
    impossible: list[Impossible] = []
    choices: list[_Choice] = []
    for recipe in runtimes.recipes.values():
        if facts.kind not in recipe.sources:
            continue
        able: dict[Target | None, list[DeviceProfile]] = {}
        for profile in profiles:
            target = target_of(profile) if recipe.targeted else None
            reason = next(_obstacles(recipe, target, profile, given), None)
            if reason is None:
                able.setdefault(target, []).append(profile)
            else:
                impossible.append(
                    Impossible(candidate=recipe.name, profile=profile.name, reason=reason)
                )
        choices += [
            _Choice(
                recipe=recipe,
                target=target,
                candidate=_candidate(recipe, target, tuple(devices), given),
            )
            for target, devices in able.items()
        ]
    threads = min((profile.threads for profile in profiles), default=1)
    usual = [choice for choice in choices if not choice.recipe.repairs]
    steps = (
        data_step(given, calibrated=any(choice.recipe.data for choice in choices)),
        reference_step(given),
        *(s for c in usual for s in build_steps(c.recipe, c.target, given)),
        *(s for c in usual for s in _checks(c.candidate, threads, given)),
    )
    _, source = runtimes.of_source(facts.kind)
    return Plan(
        steps=tuple({step.name: step for step in steps}.values()),
        candidates=tuple(choice.candidate for choice in usual),
        repairs=tuple(
            Repair(
                of=choice.recipe.repairs,
                candidate=choice.candidate,
                steps=(
                    *build_steps(choice.recipe, choice.target, given),
                    *_checks(choice.candidate, threads, given),
                ),
            )
            for choice in choices
            if choice.recipe.repairs
        ),
        impossible=tuple(impossible),
        here=frozenset(
            p.name
            for p in profiles
            if is_such(p, architecture=host.architecture, board=host.board, target=host.target)
        ),
        references=frozenset(c.candidate.name for c in usual if c.recipe.name == source.recipe),
        interface=facts.interface,
    )


def _checks(candidate: Candidate, threads: int, given: PlanInputs) -> Iterator[Step]:
    if candidate.measured:
        yield measure_step(candidate, threads, given)
    yield evaluate_step(candidate, given)


def _obstacles(
    recipe: Recipe, target: Target | None, profile: DeviceProfile, given: PlanInputs
) -> Iterator[str]:
    """Say why a profile cannot have a candidate, the plainest reason first."""
    name = _name(recipe, target)
    facts, settings = given.facts, given.settings
    if recipe.runtime not in profile.runtimes:
        yield f"the profile has no runtime {recipe.runtime}"
    yield from _too_large(recipe, facts)
    if recipe.on_request and name not in settings.keep:
        yield "a build makes it only with --keep"
    yield from _unsuited(recipe, profile)
    yield from _missing(recipe, target, given)
    yield from bodies_obstacles(recipe, facts)
    if recipe.quantizes:
        yield from _unquantizable(recipe, facts, settings)
    if recipe.repairs and not settings.repair_trials:
        yield "repairs have no trials"
    yield from unreadable(recipe, facts, given.runtimes)
    yield from _unjudged(recipe, target, given)
    if recipe.static:
        for spec in facts.inputs:
            if -1 in spec.shape[1:]:
                yield (
                    f"input {spec.name!r} {list(spec.shape)} has a size besides the batch that "
                    f"only a request gives, and {recipe.runtime} compiles for one shape; export "
                    "the model with fixed sizes to get it"
                )
    others = [runtime for runtime in profile.runtimes if runtime != recipe.runtime]
    unproven = target is not None and target.name not in given.host.native
    if recipe.last_resort and unproven and others and name not in settings.keep:
        yield (
            f"the profile has the runtime {others[0]}, and this machine cannot measure the "
            f"speed on {profile.architecture}; --keep {name} builds it anyway"
        )


def _too_large(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Say why a model whose weights stay in a file of their own cannot have a candidate."""
    if facts.apart and not recipe.apart:
        yield (
            "the model's weights stay in a file of their own (--apart-over), and this scheme's "
            "tools would hold all of them, often several times"
        )


def _missing(recipe: Recipe, target: Target | None, given: PlanInputs) -> Iterator[str]:
    """Say which tool is not here."""
    host = given.host
    base = base_of(recipe, given)
    tools = dict.fromkeys((*recipe.tools, *(base.tools if base else ())))
    missing = [tool for tool in tools if tool not in host.tools]
    if missing:
        hint = given.runtimes.installs.get(missing[0])
        yield f"{', '.join(missing)} is not installed here" + (f"; {hint}" if hint else "")
    if target is not None and (lacking := host.lacking.get(recipe.runtime, {}).get(target.name)):
        yield lacking


def _unquantizable(recipe: Recipe, facts: ModelFacts, settings: PlanSettings) -> Iterator[str]:
    """Say why a model cannot be quantized."""
    if not settings.integers:
        yield "--float-only asks for no integer variants"
    if facts.quantized or _QUANTIZED & set(facts.operators):
        yield "the model is already quantized"
    share = sum(facts.weights.get(operator, 0.0) for operator in recipe.quantizes)
    if facts.weights and share < recipe.min_share:
        names = " and ".join(sorted(recipe.quantizes & _ONNX_NAMES))
        yield f"{names} hold only {share:.1%} of the weights"
    if not recipe.quantizes & set(facts.operators):
        yield f"the model has no {' or '.join(sorted(recipe.quantizes & _ONNX_NAMES))} to quantize"


def _unjudged(recipe: Recipe, target: Target | None, given: PlanInputs) -> Iterator[str]:
    """Say why a candidate of a model with states, or whose boxes are matched, cannot be judged."""
    tuned = "tuning" in recipe.data
    emulated = target is not None and target.name not in given.host.native
    if given.settings.states:
        if tuned:
            yield "the model has states, and repairs are judged on single samples"
        if emulated:
            yield "the model has states, and sequences are not played under emulation"
    if given.settings.matched:
        if tuned:
            yield "--metric map with scores= matches boxes, and repairs need outputs of one size"
        if emulated:
            yield "--metric map with scores= matches boxes, which is not done under emulation"


def _unsuited(recipe: Recipe, profile: DeviceProfile) -> Iterator[str]:
    """Say why a candidate makes no sense on a processor."""
    if recipe.architectures and profile.architecture not in recipe.architectures:
        yield f"it is made for {' or '.join(recipe.architectures)}, not for {profile.architecture}"
    features = set(profile.isa_features)
    if recipe.any_isa and not features & set(recipe.any_isa):
        yield f"the processor has none of {', '.join(recipe.any_isa)}"
    if recipe.vnni is None or profile.architecture != "x86_64":
        return
    has_vnni = bool(_VNNI & features)
    if recipe.vnni and not has_vnni:
        yield "without VNNI its sums may saturate; a candidate with 7-bit weights replaces it"
    if has_vnni and not recipe.vnni:
        yield "with VNNI it is not needed: 8-bit weights are safe"


def _name(recipe: Recipe, target: Target | None) -> str:
    return recipe.name if target is None else f"{recipe.name}-{target.name}"


def _candidate(
    recipe: Recipe, target: Target | None, profiles: tuple[DeviceProfile, ...], given: PlanInputs
) -> Candidate:
    facts, host = given.facts, given.host
    needs = Requirements(architectures=recipe.architectures)
    if target is not None:
        needs = Requirements(architectures=(target.architecture,), isa_features=target.isa_features)
    return Candidate(
        name=_name(recipe, target),
        recipe=recipe.name,
        build=build_name(recipe, target),
        files=files_of(recipe, apart=facts.apart),
        info=VariantInfo(
            runtime=recipe.runtime,
            precision=recipe.precision,
            model_file=recipe.files[0],
            options=recipe.session,
            inputs=facts.inputs,
            outputs=facts.outputs,
            requirements=needs,
            profiles=tuple(profile.name for profile in profiles),
            size_bytes=0,
            states=given.settings.states or msgspec.UNSET,
        ),
        steps=_kinds(recipe, given),
        tools=recipe.tools,
        target=target,
        emulated=target is not None and target.name not in host.native,
        measured=target.name in host.native
        if target is not None
        else any(profile.architecture == host.architecture for profile in profiles),
    )


def _kinds(recipe: Recipe, given: PlanInputs) -> tuple[str, ...]:
    """Return the kinds of the steps that make its files."""
    if recipe.kind == PREPARE:
        return (PREPARE,)
    base = base_of(recipe, given)
    return (*(_kinds(base, given) if base else (PREPARE,)), recipe.kind)
