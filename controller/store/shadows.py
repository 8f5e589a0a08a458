"""Which releases run as shadows, as the operator or a rollout set it.

Rules:
- Each change raises the generation of the policies: with it the desired states are found in which
  the choice has to be made again (`controller.store.policy_choices`).
"""

from __future__ import annotations

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from controller.domain.names import which_there_are
from controller.domain.shadow_choice import MAX_SHADOWS
from controller.errors import ConflictError, UnknownShadowError
from controller.store import policies
from controller.store.model_tables import DesiredModelRow
from controller.store.policies import Reach
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.shadow_tables import ShadowRow
from wire.codec import to_builtins
from wire.installs import ReleaseRef
from wire.shadow import ShadowRule


def all_rows(session: Session) -> list[ShadowRow]:
    """Return the shadows by model."""
    return list(session.scalars(select(ShadowRow).order_by(ShadowRow.model)))


def get(session: Session, model: str) -> ShadowRow:
    """Return the shadow of a model.

    Raises:
        UnknownShadowError: There is none.
    """
    row = find(session, model)
    if row is None:
        known = [each.model for each in all_rows(session)]
        raise UnknownShadowError(
            f"no release runs as the shadow of a model {model[:64]!r}",
            remedy=which_there_are(
                model, known, what="models", none="start with `fleet shadow start`"
            ),
        )
    return row


def find(session: Session, model: str) -> ShadowRow | None:
    """Return the shadow of a model; None if there is none."""
    return session.get(ShadowRow, model)


def since_s(session: Session, model: str, digest: str) -> float | None:
    """Return since when a release is the shadow of its model; None if it is not."""
    row = find(session, model)
    return row.started_at_s if row is not None and row.release == digest else None


def changed_since(session: Session, model: str, began_s: float) -> set[str]:
    """Return the devices that any rollout of a model started since its shadow began.

    Args:
        session: The transaction.
        model: The model.
        began_s: When the shadow began, wall time.
    """
    rows = session.scalars(
        select(DeploymentRow.device)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .where(
            RolloutRow.model == model,
            or_(RolloutRow.finished_at_s.is_(None), RolloutRow.finished_at_s >= began_s),
            DeploymentRow.started_at_s >= began_s,
        )
    )
    return set(rows)


def rule_of(release: ReleaseRow, share: float) -> ShadowRule:
    """Return what devices are told of a shadow.

    Args:
        release: Its release.
        share: The share of the requests that it sees.
    """
    ref = ReleaseRef(
        name=release.name,
        version=release.version,
        digest=release.digest,
        envelope_sha256=release.envelope_sha256,
        envelope_size_bytes=release.envelope_size_bytes,
    )
    return ShadowRule(release=ref, share=share)


def put(
    session: Session,
    release: ReleaseRow,
    selector: str,
    rule: ShadowRule,
    *,
    started_at_s: float,
    rollout: str | None = None,
) -> None:
    """Save a shadow in place of the one of that model.

    Args:
        session: The transaction.
        release: Its release.
        selector: The devices that it is for.
        rule: What they are told.
        started_at_s: Wall time.
        rollout: The rollout that starts it; None for one that is started by hand.

    Raises:
        ConflictError: There are too many.
    """
    count = session.scalar(select(func.count()).select_from(ShadowRow)) or 0
    if count >= MAX_SHADOWS and find(session, release.name) is None:
        raise ConflictError(
            f"there are shadows of {MAX_SHADOWS} models, which is the greatest number",
            remedy="stop one: fleet shadow stop MODEL",
        )
    policies.raise_generation(session)
    session.merge(
        ShadowRow(
            model=release.name,
            release=release.digest,
            selector=selector,
            rule=to_builtins(rule),
            started_at_s=started_at_s,
            rollout=rollout,
        )
    )


def remove(session: Session, model: str) -> None:
    """Remove the shadow of a model."""
    policies.raise_generation(session)
    session.execute(delete(ShadowRow).where(ShadowRow.model == model))


def remove_release(session: Session, model: str, digest: str) -> None:
    """Remove the shadow of a model, if it is this release: it has just been revoked."""
    if since_s(session, model, digest) is not None:
        remove(session, model)


def reach(session: Session) -> dict[str, Reach]:
    """Return how many devices are to run the shadow of each model, and how many accepted it."""
    return policies.reach_by_model(session, DesiredModelRow.shadow)
