"""By which rule a rollout halts: failures, gates and shadows. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from controller.domain.failure_limits import failures, share_of
from controller.domain.gates.states import GateState
from controller.domain.rollout_view import RolloutView
from controller.domain.wording import counted


def broken_rule(view: RolloutView, *, silent: int, lost: int = 0) -> str | None:
    """Say which abort rule is broken.

    Args:
        view: What is known.
        silent: Devices in flight that are past their deadline.
        lost: Devices in flight that did not come back.

    Returns:
        The reason to halt, or None.
    """
    return next(_broken_rules(view, silent=silent, lost=lost), None)


def _broken_rules(view: RolloutView, *, silent: int, lost: int) -> Iterator[str]:
    limits, share = view.limits, share_of(view, gone=silent + lost)
    kinds = failures(view, gone=silent + lost)
    gone = f", {silent} of them sent no report before the deadline" if silent else ""
    gone += f", {lost} of them went offline and did not come back" if lost else ""
    what = gone if limits.max_timed_out is None else ""
    if view.acknowledged:
        what += f", not counting {view.acknowledged} that the operator acknowledged"
    if share.failed > limits.max_failures:
        yield f"{counted(share.failed)} failed{what}; allowed: {limits.max_failures}"
    if limits.max_refused is not None and kinds.refused > limits.max_refused:
        yield f"{counted(kinds.refused)} refused the release; allowed: {limits.max_refused}"
    if limits.max_timed_out is not None and kinds.timed_out > limits.max_timed_out:
        yield f"{counted(kinds.timed_out)} timed out{gone}; allowed: {limits.max_timed_out}"
    for gate in view.asked:
        if gate.state is GateState.FAIL and not gate.is_waived:
            yield f"gate {gate.text} failed: {gate.reason}"
    if view.shadow is not None and view.shadow.fails:
        yield f"the shadow before stage {view.stage} failed: {view.shadow.reason}"
    most = limits.max_failure_percent
    if most is None or share.finished < limits.min_finished or share.certain_percent <= most:
        return
    worst = f"; at worst it is {share.worst_percent:.1f} %" if share.unknown else ""
    yield (
        f"{share.certain_percent:.1f} % of {share.finished} finished devices failed{what}, "
        f"at most {most:g} % are allowed{worst}"
    )
