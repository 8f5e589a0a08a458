"""The tables of the control state.

Rules:
- The database forbids what the code forbids: every state column has a CHECK, every reference a
  foreign key, and a device has at most one unfinished deployment of each model.
- Times are wall seconds since the epoch, because they outlive the process.
- The database keeps no secrets: only the digest of a token and the public key of a device.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from controller.domain.peer_urls import MAX_URL_CHARS
from controller.domain.selector_parser import MAX_SELECTOR_CHARS
from controller.domain.states import (
    AUTO,
    DeltaState,
    DeploymentState,
    DeviceState,
    ReleaseState,
    RolloutState,
    TokenState,
)
from controller.store.control_columns import ControlColumns

NAME_CHARS = 63
DIGEST_CHARS = 64
MAX_DETAIL_CHARS = 500
MAX_CODE_CHARS = 64
ERROR_CHARS = MAX_DETAIL_CHARS + MAX_CODE_CHARS + 2


def one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    """Return a constraint: a column holds one of some states."""
    names = ", ".join(f"'{state}'" for state in states)
    return CheckConstraint(f"{column} IN ({names})", name=column)


class Base(DeclarativeBase):
    """All tables; constraints have names so that a migration can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {float: Double, dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012 - read by SQLAlchemy as a plain class attribute


class DeviceRow(Base):
    """A device and what it last reported."""

    __tablename__ = "device"
    __table_args__ = (
        one_of("state", DeviceState),
        Index(None, "online", "last_seen_at_s"),
        Index(None, "id", "online"),  # a row is wide: whether a device is online is asked often
    )

    id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    public_key: Mapped[str] = mapped_column(String(64))
    profile_name: Mapped[str] = mapped_column(String(NAME_CHARS))
    architecture: Mapped[str] = mapped_column(String(16))
    profile: Mapped[dict[str, Any]]
    runtimes: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Those of the profile that it has; null where it has all of them, or did not say."""

    agent_version: Mapped[str] = mapped_column(String(64))
    boot_id: Mapped[str] = mapped_column(String(64))
    online: Mapped[bool] = mapped_column(Boolean)
    greeted: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it has said what it is and has since it enrolled. A restore does not change it."""

    may_enrol_again: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Set by the operator for a decommissioned device; the next enrolment takes it back."""

    certificate_ends_at_s: Mapped[float | None]
    """When the last certificate that it got ends; null if it has none."""

    lent: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the operator lends it for measurements."""

    peer_url: Mapped[str | None] = mapped_column(String(MAX_URL_CHARS))
    """Where it serves the devices of its site, as it said when it connected last; null if it serves
    nobody, or elsewhere than it may."""

    trust_file: Mapped[bool | None] = mapped_column(Boolean)
    """Whether it trusts keys in a trust file, and not the fleet's metadata, as it said when it
    connected last; null until then."""

    report_sequence: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Number of the last report of this boot; a report with a lower one comes late."""

    allows_shadows: Mapped[bool] = mapped_column(Boolean, server_default=true())
    """False if it said when it connected last that it runs none."""

    desired_form: Mapped[int] = mapped_column(Integer, server_default="1")
    """The newest form of a desired state that it reads (`wire.desired`), as it said last."""

    reported_revision: Mapped[int] = mapped_column(BigInteger)
    """The newest desired state that it has accepted."""

    last_error: Mapped[str] = mapped_column(String(ERROR_CHARS))
    """What it said last that concerns no single model, such as why it refuses a desired state."""

    enrolled_at_s: Mapped[float]
    last_seen_at_s: Mapped[float | None]
    expected_from_s: Mapped[float | None]
    """When it was let in again after a quarantine, in which nothing could be heard of it; null if
    something has been since."""

    labels: Mapped[list[DeviceLabelRow]] = relationship(
        cascade="all, delete-orphan", order_by="DeviceLabelRow.key"
    )


class DeviceLabelRow(Base):
    """A label of a device."""

    __tablename__ = "device_label"
    __table_args__ = (Index(None, "key", "value"),)

    device: Mapped[str] = mapped_column(ForeignKey("device.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    value: Mapped[str] = mapped_column(String(128))


class EnrolmentTokenRow(Base):
    """An enrolment token, by digest."""

    __tablename__ = "enrolment_token"
    __table_args__ = (
        one_of("state", TokenState),
        CheckConstraint("uses_left >= 0", name="uses_left"),
        UniqueConstraint("username"),
    )

    sha256: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    username: Mapped[str] = mapped_column(String(NAME_CHARS))
    state: Mapped[str] = mapped_column(String(16))
    uses_left: Mapped[int] = mapped_column(Integer)
    labels: Mapped[dict[str, Any]]
    accepts: Mapped[str] = mapped_column(String(MAX_SELECTOR_CHARS), server_default=AUTO)
    """Which devices it lets in by itself (`controller.domain.acceptance`)."""

    created_at_s: Mapped[float]
    expires_at_s: Mapped[float]
    used_at_s: Mapped[float | None]


class ReleaseRow(Base):
    """A published package."""

    __tablename__ = "release"
    __table_args__ = (one_of("state", ReleaseState), UniqueConstraint("name", "version"))

    digest: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_CHARS))
    version: Mapped[str] = mapped_column(String(NAME_CHARS))
    state: Mapped[str] = mapped_column(String(16))
    envelope_sha256: Mapped[str] = mapped_column(String(DIGEST_CHARS))
    envelope_size_bytes: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    published_at_s: Mapped[float]
    variants: Mapped[list[Any]]
    """Summaries of the manifest's variants, as `release_schemas.VariantSummary`."""


class ReleaseBlobRow(Base):
    """A blob that belongs to a release: its files and its envelope."""

    __tablename__ = "release_blob"
    __table_args__ = (Index(None, "sha256"),)

    release: Mapped[str] = mapped_column(ForeignKey("release.digest"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class DeltaRow(Base):
    """What is known of the delta from one file to another; the delta itself is a blob."""

    __tablename__ = "delta"
    __table_args__ = (
        one_of("state", DeltaState),
        CheckConstraint(
            "state <> 'ready' OR (sha256 IS NOT NULL AND size_bytes IS NOT NULL)", name="ready"
        ),
        Index(None, "sha256"),
        Index(None, "target"),
    )

    base: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    """SHA-256 of the file that it begins from; that of no bytes for plain compression."""

    target: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    full_bytes: Mapped[int] = mapped_column(BigInteger)
    """Size of the target."""

    sha256: Mapped[str | None] = mapped_column(String(DIGEST_CHARS))
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    chunk_bytes: Mapped[int] = mapped_column(Integer, server_default="0")
    chunks: Mapped[list[Any]]
    """SHA-256 of each chunk; empty where they would be too many."""

    made_at_s: Mapped[float]
    used_at_s: Mapped[float]
    """When it was last offered, to the hour: the one that was longest not used goes first."""


class RolloutRow(ControlColumns, Base):
    """A rollout, what the operator set, and where it is."""

    __tablename__ = "rollout"
    __table_args__ = (
        one_of("state", RolloutState),
        CheckConstraint("stage >= 1 AND approved_stage >= 1", name="stage"),
        CheckConstraint("max_in_flight >= 1 AND max_failures >= 0", name="limits"),
        Index(None, "state"),
    )

    id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    release: Mapped[str] = mapped_column(ForeignKey("release.digest"))
    model: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The name of the release. All releases that the rollout brings are of this model."""

    origin: Mapped[str | None] = mapped_column(
        ForeignKey("rollout.id", name="fk_rollout_rollback_of")
    )
    """Set for a rollback and for another try: the devices are those of that rollout, and no others
    join."""

    is_retry: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it tries the release of its origin again, and does not roll it back."""

    selector: Mapped[str] = mapped_column(String(1024))
    spread: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The label over which the order of starting is spread."""

    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    """The reason of the last decision; a decision is logged when it or its reason changes."""

    max_in_flight: Mapped[int] = mapped_column(Integer)
    soak_s: Mapped[float]
    device_deadline_s: Mapped[float]
    offline_limit_s: Mapped[float] = mapped_column(server_default="86400")
    max_failures: Mapped[int] = mapped_column(Integer)
    max_failure_percent: Mapped[float | None]
    min_finished: Mapped[int] = mapped_column(Integer)
    approval: Mapped[bool] = mapped_column(Boolean)
    initial_devices: Mapped[int] = mapped_column(Integer)
    stage: Mapped[int] = mapped_column(Integer)
    approved_stage: Mapped[int] = mapped_column(Integer)
    ran_s: Mapped[float] = mapped_column(server_default="0")
    """The rollout's own clock: how long a controller has watched it. Its limits are measured with
    this clock, so that no time passes for devices while no controller hears them."""

    stage_complete_at_s: Mapped[float | None]
    """By the rollout's own clock."""

    control_released: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the control group gets the release, too, from now on."""

    gates_passed_by_hand: Mapped[int] = mapped_column(Integer, server_default="0")
    """The last stage that the operator let end despite gates that held."""

    created_at_s: Mapped[float]
    created_by: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The API token that made it; empty where that was not noted yet."""

    finished_at_s: Mapped[float | None]


class RolloutStageRow(Base):
    """A stage of a rollout."""

    __tablename__ = "rollout_stage"
    __table_args__ = (
        CheckConstraint("(count IS NULL) <> (percent IS NULL)", name="count_or_percent"),
    )

    rollout: Mapped[str] = mapped_column(ForeignKey("rollout.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    count: Mapped[int | None] = mapped_column(Integer)
    percent: Mapped[float | None]
    selector: Mapped[str] = mapped_column(String(1024), server_default="")
    """By which it chooses its devices; `count` is how many of them there were."""

    soak_s: Mapped[float | None]
    """Its own; None for that of the rollout."""

    approval: Mapped[bool | None] = mapped_column(Boolean)
    asks_gates: Mapped[bool | None] = mapped_column(Boolean)
    """Whether it reaches enough devices that can be compared, where stages choose some."""

    shadow: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What its shadow must have shown before it begins, as `ShadowNeed`; None for nothing."""


class DeploymentRow(Base):
    """One device's part in a rollout."""

    __tablename__ = "deployment"
    __table_args__ = (
        one_of("state", DeploymentState),
        CheckConstraint(
            "state IN ('pending', 'cancelled') OR (revision IS NOT NULL"
            " AND started_at_s IS NOT NULL)",
            name="started",
        ),
        Index(
            "uq_deployment_unfinished",
            "device",
            "model",
            unique=True,
            sqlite_where=text("state IN ('pending', 'assigned', 'waiting')"),
            postgresql_where=text("state IN ('pending', 'assigned', 'waiting')"),
        ),
        Index(None, "rollout", "state", "position", "device"),
        Index(
            "ix_deployment_control",
            "rollout",
            "state",
            sqlite_where=text("is_control IS 1"),
            postgresql_where=text("is_control IS true"),
        ),
        Index(None, "device", "revision"),
    )

    rollout: Mapped[str] = mapped_column(ForeignKey("rollout.id"), primary_key=True)
    device: Mapped[str] = mapped_column(ForeignKey("device.id"), primary_key=True)
    model: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """That of the rollout."""

    state: Mapped[str] = mapped_column(String(16))
    position: Mapped[int] = mapped_column(Integer)
    """Order of starting: a fixed shuffle, so that the first stage is a fair sample."""

    stage: Mapped[int] = mapped_column(Integer)
    """The stage in which it was started; 0 before."""

    is_control: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it keeps the old release until the rollout's gates have passed in the last stage."""

    revision: Mapped[int | None] = mapped_column(BigInteger)
    """The revision of the desired state that started it."""

    previous: Mapped[str | None] = mapped_column(ForeignKey("release.digest"))
    """The release that the device had before and can go back to."""

    is_first: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the device had nothing of the model before: it goes back to nothing."""

    release: Mapped[str | None] = mapped_column(ForeignKey("release.digest"))
    """The release that the device is brought to, if it is not the rollout's."""

    acknowledged: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the operator went on despite this failure."""

    clock_s: Mapped[float] = mapped_column(server_default="0")
    """When it was started, by the rollout's own clock."""

    away_s: Mapped[float] = mapped_column(server_default="0")
    """How long it was offline since, without the time that still goes on."""

    away_from_s: Mapped[float | None]
    """Since when it is offline, by the rollout's own clock; None while it is online."""

    phase: Mapped[str] = mapped_column(String(16))
    done_bytes: Mapped[int] = mapped_column(BigInteger)
    total_bytes: Mapped[int] = mapped_column(BigInteger)
    error_code: Mapped[str] = mapped_column(String(MAX_CODE_CHARS))
    detail: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    started_at_s: Mapped[float | None]
    reported_at_s: Mapped[float | None]
    finished_at_s: Mapped[float | None]


class PolicyRow(Base):
    """A policy, and the devices and the model that it is for."""

    __tablename__ = "policy"

    name: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    model: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """None for all models."""

    selector: Mapped[str] = mapped_column(String(1024))
    priority: Mapped[int] = mapped_column(Integer)
    spec: Mapped[dict[str, Any]]
    changed_at_s: Mapped[float]


class PolicySetRow(Base):
    """All policies together: one row, whose generation grows with each change of any of them."""

    __tablename__ = "policy_set"
    __table_args__ = (CheckConstraint("id = 1 AND generation >= 1", name="one"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[int] = mapped_column(BigInteger)


class RolloutEventRow(Base):
    """A decision about a rollout, and its reason."""

    __tablename__ = "rollout_event"
    __table_args__ = (Index(None, "rollout"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    rollout: Mapped[str] = mapped_column(ForeignKey("rollout.id"))
    at_s: Mapped[float]
    action: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    actor: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The API token of the request in which it was made; empty for the controller's own."""
