"""Selects, of the candidates that passed the gates of a profile, those that it gets. Pure.

Rules:
- A candidate is dropped as beaten only if one that is shipped beats it (`ranking.beats`).
- Of candidates that run the same instructions, the one closest to the reference is left: their
  times and memory differ by noise.
- If more are left than the budget, those go first that a shipped one of the same runtime is closest
  to; it stands for them.
- What is pinned, and the fastest of each runtime, stays in any case: a device may have that runtime
  alone. `drop_beaten` takes that from the runtimes.
- A latency is valid only for such devices as the measuring machine is one. For others, a candidate
  is dropped only in favour of a closer one that runs the same instructions, of a float variant of
  the same runtime that is as good and as small, or for the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from packager.judge.ranking import (
    SIZE_TOLERANCE,
    beats,
    beside,
    defeat,
    figures,
    rank,
    remoteness,
    spans,
    worth,
)
from packager.judge.verdicts import Verdict
from wire.package.variant import Variant

_FLOAT: Final = "fp"
"""The prefix of the precisions that compute in floats."""


class Choice(NamedTuple):
    """How a profile's variants are selected."""

    pinned: frozenset[str]
    """Names of variants that are kept in any case."""

    families: Mapping[str, str]
    """Variant to the name that it shares with those that run the same instructions."""

    foreign: bool
    """Whether latencies were measured on a machine that is no such device."""

    drop_beaten: bool
    """Whether a runtime may lose its fastest variant."""

    budget: int
    """How many variants are kept, beyond what stays in any case."""


def select(passed: Sequence[Variant], choice: Choice) -> dict[str, Verdict]:
    """Decide which candidates are kept.

    Args:
        passed: Those that passed the gates.
        choice: How to select.

    Returns:
        Candidate to verdict.
    """
    finalists, closest = _best_of_families(passed, choice)
    if choice.foreign:
        found = {v.name: _unmeasured(v, finalists, pinned=choice.pinned) for v in finalists}
        front = [v for v in finalists if found[v.name].kept]
        protected = choice.pinned
    else:
        protected = choice.pinned | (frozenset() if choice.drop_beaten else _fastest(finalists))
        front = _unbeaten(finalists, protected)
        found = {}
    shipped = _thinned(front, protected, choice)
    for variant in finalists:
        if variant in shipped:
            reason = _why_kept(variant, shipped, choice)
            found[variant.name] = Verdict(kept=True, reason=reason)
        elif variant.name not in found or found[variant.name].kept:
            found[variant.name] = _dropped(variant, shipped, choice)
    names = {v.name: v for v in passed}
    for name, winner in closest.items():
        found[name] = _same_instructions(names[winner], names[name])
    return {name: _naming_shipped(verdict, found) for name, verdict in found.items()}


def _naming_shipped(verdict: Verdict, found: Mapping[str, Verdict]) -> Verdict:
    """Let a verdict that names a variant which was dropped itself name the shipped one too."""
    instead = verdict.instead
    while instead and not found[instead].kept:
        instead = found[instead].instead
    if instead == verdict.instead:
        return verdict
    reason = f"{verdict.reason}; {instead} is shipped instead of that one"
    return msgspec.structs.replace(verdict, reason=reason, instead=instead)


def _unbeaten(finalists: Sequence[Variant], protected: frozenset[str]) -> list[Variant]:
    """Return the protected candidates, and of the others those that none of the result beats.

    A candidate that another beats is left out only when that other is in the result: with
    tolerances, what beats it may itself be beaten by a third that does not beat it.
    """
    kept = [v for v in finalists if v.name in protected]
    open_ = _not_beaten_by(kept, sorted((v for v in finalists if v not in kept), key=rank))
    while open_:
        best = [v for v in open_ if not any(beats(other, v) for other in open_)] or open_[:1]
        kept += best
        open_ = _not_beaten_by(kept, [v for v in open_ if v not in best])
    return kept


def _not_beaten_by(kept: Sequence[Variant], others: Iterable[Variant]) -> list[Variant]:
    return [v for v in others if not any(beats(winner, v) for winner in kept)]


def _thinned(
    front: Sequence[Variant], protected: frozenset[str], choice: Choice
) -> tuple[Variant, ...]:
    """Return at most as many variants as the budget allows, and those that stay in any case."""
    kept = list(front)
    while len(kept) > choice.budget:
        runtimes = [v.info.runtime for v in kept]
        free = [
            v
            for v in kept
            if v.name not in protected
            and (choice.drop_beaten or runtimes.count(v.info.runtime) > 1)
        ]
        if not free or len(kept) == 1:
            break

        def loss(variant: Variant) -> tuple[float, float, str]:
            _, quality_lost = _stand_in(variant, kept, choice)
            return quality_lost, -rank(variant)[0], variant.name

        kept.remove(min(free, key=loss))
    return tuple(kept)


def _stand_in(variant: Variant, kept: Iterable[Variant], choice: Choice) -> tuple[Variant, float]:
    """Return which of the kept variants is the least worse than one, and how much."""
    timed = not choice.foreign
    others = [other for other in kept if other is not variant]
    if not choice.drop_beaten:
        others = [other for other in others if other.info.runtime == variant.info.runtime]
    best = min(others, key=lambda other: (remoteness(other, variant, timed=timed), rank(other)))
    return best, remoteness(best, variant, timed=timed)


def _dropped(variant: Variant, shipped: Sequence[Variant], choice: Choice) -> Verdict:
    winners = [] if choice.foreign else [v for v in shipped if beats(v, variant)]
    if winners:
        winner = min(winners, key=rank)
        return Verdict(kept=False, reason=defeat(winner, variant), instead=winner.name)
    stand_in, _ = _stand_in(variant, shipped, choice)
    budget = "1 variant" if choice.budget == 1 else f"{choice.budget} variants"
    return Verdict(
        kept=False,
        reason=f"{stand_in.name} stands for it, because the profile gets {budget}: "
        f"{beside(stand_in, variant, timed=not choice.foreign)}",
        instead=stand_in.name,
    )


def _why_kept(variant: Variant, shipped: Sequence[Variant], choice: Choice) -> str:
    if choice.foreign:
        return "kept; its latency cannot be measured on this machine"
    beaten = any(beats(other, variant) for other in shipped)
    if beaten and variant.name not in choice.pinned:
        return f"kept: a device may have {variant.info.runtime} alone"
    return "kept"


def _fastest(passed: Sequence[Variant]) -> frozenset[str]:
    """Return the name of the fastest variant of each runtime that no other of it beats."""
    found: set[str] = set()
    for runtime in {v.info.runtime for v in passed}:
        own = [v for v in passed if v.info.runtime == runtime]
        unbeaten = [v for v in own if not any(beats(other, v) for other in own)] or own
        timed = [v for v in unbeaten if v.info.performance is not None]
        if timed:
            order = sorted(zip(spans(timed), timed, strict=True), key=lambda p: (p[0], rank(p[1])))
            found.add(order[0][1].name)
        else:
            found.add(min(unbeaten, key=rank).name)
    return frozenset(found)


def _best_of_families(
    passed: Sequence[Variant], choice: Choice
) -> tuple[list[Variant], dict[str, str]]:
    """Select the pinned variants and, of each family, the one closest to the reference.

    Returns:
        Them, and every other variant with the name of the one of its family.
    """
    finalists: list[Variant] = []
    inferior: dict[str, str] = {}
    best: dict[str, Variant] = {}
    for variant in sorted(passed, key=_exactness):
        winner = best.setdefault(choice.families.get(variant.name, variant.name), variant)
        if winner is variant or variant.name in choice.pinned:
            finalists.append(variant)
        else:
            inferior[variant.name] = winner.name
    return finalists, inferior


def _unmeasured(variant: Variant, others: list[Variant], *, pinned: frozenset[str]) -> Verdict:
    """Decide about a variant whose speed on the device is unknown.

    A quantized variant that is neither smaller nor better than a float one is dropped: it could
    only be faster.
    """
    for other in others:
        if (
            other is not variant
            and variant.name not in pinned
            and other.info.runtime == variant.info.runtime
            and other.info.precision.startswith(_FLOAT)
            and not variant.info.precision.startswith(_FLOAT)
            and worth(figures(other)[0]) >= worth(figures(variant)[0])
            and other.info.size_bytes <= variant.info.size_bytes * (1 + SIZE_TOLERANCE)
        ):
            return Verdict(
                kept=False,
                reason=f"it is neither smaller nor better than {other.name}, and its latency "
                "cannot be measured on this machine",
                instead=other.name,
            )
    return Verdict(kept=True, reason="kept")


def _exactness(variant: Variant) -> tuple[float, float, str]:
    """Return a sort key, the closest to the reference first; their metrics differ by chance."""
    accuracy, _ = figures(variant)
    sqnr_db = float("inf") if accuracy.sqnr_db is None else accuracy.sqnr_db
    return (-sqnr_db, accuracy.worst_error, variant.name)


def _same_instructions(winner: Variant, loser: Variant) -> Verdict:
    good, worse = figures(winner)[0], figures(loser)[0]
    close, far = ("exact" if a.sqnr_db is None else f"{a.sqnr_db:.1f}" for a in (good, worse))
    return Verdict(
        kept=False,
        reason=f"it runs the same instructions as {winner.name} and is no closer to the "
        f"reference: SQNR {far} against {close} dB",
        instead=winner.name,
    )
