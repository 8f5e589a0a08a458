"""Gates of rollouts: what they are, which devices they compare, and what looks have shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, ScalarSelect, exists, func, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.gates.look import Member
from controller.domain.gates.silence import Silence
from controller.domain.gates.states import GateState
from controller.domain.gates.verdicts import Verdict
from controller.domain.rollout_view import GateView
from controller.domain.states import DeploymentState, DeviceState
from controller.store.device_tables import DeviceRow
from controller.store.gate_tables import GateAwayRow, GateLookRow, GateRow
from controller.store.model_tables import DeviceModelRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.tables import MAX_DETAIL_CHARS


class AskedGate(NamedTuple):
    """A gate of a rollout."""

    number: int
    text: str
    stage: int | None
    """The only one in which it is asked; None for all."""


def add(
    session: Session, rollout: str, texts: Sequence[str], of_stages: Mapping[int, Sequence[str]]
) -> None:
    """Save the gates of a new rollout, those of all stages first."""
    own = [(stage, text) for stage, each in sorted(of_stages.items()) for text in each]
    session.add_all(
        GateRow(rollout=rollout, number=number, text=text, stage=stage)
        for number, (stage, text) in enumerate([*((None, text) for text in texts), *own], start=1)
    )


def all_gates(session: Session, rollout: str) -> list[AskedGate]:
    """Return the gates of a rollout in order, those of single stages among them."""
    rows = session.execute(
        select(GateRow.number, GateRow.text, GateRow.stage)
        .where(GateRow.rollout == rollout)
        .order_by(GateRow.number)
    )
    return [AskedGate(*row) for row in rows]


def views(session: Session, row: RolloutRow) -> tuple[GateView, ...]:
    """Return the gates of a rollout with what the last look has shown; none of one without any.

    Args:
        session: The transaction.
        row: The rollout.
    """
    last = {
        look.number: look
        for look in session.scalars(
            select(GateLookRow).where(
                GateLookRow.rollout == row.id, GateLookRow.look == last_look(session, row.id)
            )
        )
    }
    rows = session.scalars(
        select(GateRow).where(GateRow.rollout == row.id).order_by(GateRow.number)
    )
    return tuple(_view(gate, last.get(gate.number)) for gate in rows)


def _view(gate: GateRow, look: GateLookRow | None) -> GateView:
    if look is None:
        return GateView(text=gate.text, stage=gate.stage, is_waived=gate.is_waived)
    return GateView(
        text=gate.text,
        stage=gate.stage,
        state=GateState(look.state),
        reason=look.reason,
        looked_at_s=look.clock_s,
        is_waived=gate.is_waived,
    )


def last_look(session: Session, rollout: str) -> int:
    """Return how often the gates of a rollout were looked at."""
    statement = select(func.max(GateLookRow.look)).where(GateLookRow.rollout == rollout)
    return session.scalar(statement) or 0


def last_look_s(session: Session, rollout: str, *, before: int | None = None) -> float | None:
    """Return when the gates of a rollout were last looked at, by its own clock.

    Args:
        session: The transaction.
        rollout: The rollout.
        before: Only in stages before this one; None for all.
    """
    statement = select(func.max(GateLookRow.clock_s)).where(GateLookRow.rollout == rollout)
    if before is not None:
        statement = statement.where(GateLookRow.stage < before)
    return session.scalar(statement)


def save_look(
    session: Session,
    row: RolloutRow,
    look: int,
    verdicts: Mapping[int, Verdict],
    *,
    is_end: bool,
    now_s: float,
) -> None:
    """Save what a look at the gates of a stage has shown.

    Args:
        session: The transaction.
        row: The rollout.
        look: Its number; saving one twice fails.
        verdicts: By the number of the gate.
        is_end: Whether it took the part of one at the end of a soak.
        now_s: Wall time.
    """
    row.gate_ends_left -= is_end
    session.add_all(
        GateLookRow(
            rollout=row.id,
            look=look,
            number=number,
            stage=row.stage,
            at_s=now_s,
            clock_s=row.ran_s,
            state=told.state,
            reason=told.reason[:MAX_DETAIL_CHARS],
            estimate=told.estimate,
            low=told.low,
            high=told.high,
            treated=told.treated,
            control=told.control,
            told=told.silence.told,
            expected=told.silence.expected,
            unseen=told.unseen,
        )
        for number, told in verdicts.items()
    )


def silences(session: Session, row: RolloutRow) -> dict[int, list[Silence]]:
    """Return the silence at the looks in the current stage of a rollout, by gate."""
    rows = session.execute(
        select(GateLookRow.number, GateLookRow.told, GateLookRow.expected).where(
            GateLookRow.rollout == row.id, GateLookRow.stage == row.stage
        )
    )
    found: dict[int, list[Silence]] = defaultdict(list)
    for number, told, expected in rows:
        found[number].append(Silence(told, expected))
    return found


def looks(session: Session, rollout: str, *, limit: int) -> list[GateLookRow]:
    """Return what looks have shown: the newest, the oldest of them first."""
    rows = session.scalars(
        select(GateLookRow)
        .where(GateLookRow.rollout == rollout)
        .order_by(GateLookRow.look.desc(), GateLookRow.number.desc())
        .limit(limit)
    )
    return list(rows)[::-1]


def waive_failed(session: Session, rollout: str) -> list[str]:
    """Ask no more for the gates that failed in the last look; return them."""
    failed = (
        select(GateLookRow.number)
        .where(
            GateLookRow.rollout == rollout,
            GateLookRow.look == last_look(session, rollout),
            GateLookRow.state == GateState.FAIL,
        )
        .scalar_subquery()
    )
    mine = (GateRow.rollout == rollout) & GateRow.number.in_(failed) & GateRow.is_waived.is_(False)
    waived = list(session.scalars(select(GateRow.text).where(mine).order_by(GateRow.number)))
    session.execute(update(GateRow).where(mine).values(is_waived=True))
    return waived


def with_release(session: Session, rollout: str, *, until_s: float) -> list[Member]:
    """Return the devices that a rollout has brought to its release by some wall time.

    None that was away at its turn in a stage: neither side has those. None that ran the release
    before, either: what it showed then is not what the old one shows.
    """
    return _members(session, rollout, *_has_release(rollout, until_s), ~_is_away(rollout))


def away_with_release(session: Session, rollout: str, *, until_s: float) -> list[Member]:
    """Return those of them that were away at their turn in a stage after they got the release."""
    has_it = GateAwayRow.has_release.is_(True)
    return _members(session, rollout, *_has_release(rollout, until_s), _is_away(rollout, has_it))


def _has_release(rollout: str, until_s: float) -> tuple[ColumnElement[bool], ...]:
    release = _release_of(rollout)
    is_done = DeploymentRow.state == DeploymentState.SUCCEEDED
    had_another = DeploymentRow.previous.is_distinct_from(release)
    return is_done, had_another, DeploymentRow.finished_at_s <= until_s


def _release_of(rollout: str) -> ScalarSelect[str]:
    return select(RolloutRow.release).where(RolloutRow.id == rollout).scalar_subquery()


def without_release(session: Session, rollout: str) -> list[Member]:
    """Return the devices of a rollout that keep the old release, held out or not yet started.

    None that runs the release already.
    """
    runs_it = exists().where(
        DeviceModelRow.device == DeploymentRow.device,
        DeviceModelRow.model == DeploymentRow.model,
        DeviceModelRow.release == _release_of(rollout),
    )
    is_pending = DeploymentRow.state == DeploymentState.PENDING
    return _members(session, rollout, is_pending, ~runs_it, ~_is_away(rollout))


def under_way(session: Session, rollout: str, *, at_s: float) -> int:
    """Return how many devices of a rollout had begun at some wall time and had no outcome then."""
    return session.scalars(
        select(func.count())
        .select_from(DeploymentRow)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.started_at_s <= at_s,
            or_(DeploymentRow.finished_at_s.is_(None), DeploymentRow.finished_at_s > at_s),
            ~_is_away(rollout),
        )
    ).one()


def _is_away(rollout: str, *more: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a device was away at its turn."""
    away = select(GateAwayRow.device).where(GateAwayRow.rollout == rollout, *more)
    return DeploymentRow.device.in_(away)


def _members(session: Session, rollout: str, *conditions: ColumnElement[bool]) -> list[Member]:
    rows = session.execute(
        select(DeploymentRow.device, DeviceRow.profile_name, DeploymentRow.position)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(
            DeploymentRow.rollout == rollout, DeviceRow.state == DeviceState.ENROLLED, *conditions
        )
        .order_by(DeploymentRow.device)
    )
    return [Member(*row) for row in rows]
