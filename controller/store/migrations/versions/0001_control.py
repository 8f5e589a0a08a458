"""The control state: devices, tokens, releases, rollouts.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "rollout_stage",
    "rollout_event",
    "desired_state",
    "deployment",
    "rollout",
    "release_blob",
    "device_label",
    "release",
    "enrolment_token",
    "device",
)
"""In the order in which they can be dropped."""


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "device",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("public_key", sa.String(length=64), nullable=False),
        sa.Column("profile_name", sa.String(length=63), nullable=False),
        sa.Column("architecture", sa.String(length=16), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("agent_version", sa.String(length=64), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("online", sa.Boolean(), nullable=False),
        sa.Column("reported_revision", sa.BigInteger(), nullable=False),
        sa.Column("reported_release", sa.String(length=64), nullable=True),
        sa.Column("variant", sa.String(length=63), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("last_error", sa.String(length=566), nullable=False),
        sa.Column("enrolled_at_s", sa.Double(), nullable=False),
        sa.Column("last_seen_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('enrolled', 'quarantined', 'decommissioned')", name=op.f("ck_device_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device")),
    )
    op.create_index(
        op.f("ix_device_online_last_seen_at_s"),
        "device",
        ["online", "last_seen_at_s"],
        unique=False,
    )
    op.create_table(
        "enrolment_token",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("username", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.Column("used_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint("state IN ('open', 'closed')", name=op.f("ck_enrolment_token_state")),
        sa.CheckConstraint("uses_left >= 0", name=op.f("ck_enrolment_token_uses_left")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_enrolment_token")),
        sa.UniqueConstraint("username", name=op.f("uq_enrolment_token_username")),
    )
    op.create_table(
        "release",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("version", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("envelope_sha256", sa.String(length=64), nullable=False),
        sa.Column("envelope_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("published_at_s", sa.Double(), nullable=False),
        sa.Column("variants", sa.JSON(), nullable=False),
        sa.CheckConstraint("state IN ('published', 'revoked')", name=op.f("ck_release_state")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_release")),
        sa.UniqueConstraint("name", "version", name=op.f("uq_release_name_version")),
    )
    op.create_table(
        "device_label",
        sa.Column("device", sa.String(length=63), nullable=False),
        sa.Column("key", sa.String(length=63), nullable=False),
        sa.Column("value", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["device.id"], name=op.f("fk_device_label_device")),
        sa.PrimaryKeyConstraint("device", "key", name=op.f("pk_device_label")),
    )
    op.create_index(
        op.f("ix_device_label_key_value"), "device_label", ["key", "value"], unique=False
    )
    op.create_table(
        "release_blob",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["release"], ["release.digest"], name=op.f("fk_release_blob_release")
        ),
        sa.PrimaryKeyConstraint("release", "sha256", name=op.f("pk_release_blob")),
    )
    op.create_index(op.f("ix_release_blob_sha256"), "release_blob", ["sha256"], unique=False)
    op.create_table(
        "rollout",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("rollback_of", sa.String(length=63), nullable=True),
        sa.Column("selector", sa.String(length=1024), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=False),
        sa.Column("soak_s", sa.Double(), nullable=False),
        sa.Column("device_deadline_s", sa.Double(), nullable=False),
        sa.Column("max_failures", sa.Integer(), nullable=False),
        sa.Column("max_failure_percent", sa.Double(), nullable=True),
        sa.Column("min_finished", sa.Integer(), nullable=False),
        sa.Column("approval", sa.Boolean(), nullable=False),
        sa.Column("initial_devices", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("approved_stage", sa.Integer(), nullable=False),
        sa.Column("stage_complete_at_s", sa.Double(), nullable=True),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("finished_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('running', 'paused', 'halted', 'succeeded', 'aborted')",
            name=op.f("ck_rollout_state"),
        ),
        sa.CheckConstraint(
            "max_in_flight >= 1 AND max_failures >= 0", name=op.f("ck_rollout_limits")
        ),
        sa.CheckConstraint("stage >= 1 AND approved_stage >= 1", name=op.f("ck_rollout_stage")),
        sa.ForeignKeyConstraint(["release"], ["release.digest"], name=op.f("fk_rollout_release")),
        sa.ForeignKeyConstraint(
            ["rollback_of"], ["rollout.id"], name=op.f("fk_rollout_rollback_of")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
    )
    op.create_index(op.f("ix_rollout_state"), "rollout", ["state"], unique=False)
    op.create_table(
        "deployment",
        sa.Column("rollout", sa.String(length=63), nullable=False),
        sa.Column("device", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("previous", sa.String(length=64), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("done_bytes", sa.BigInteger(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.String(length=500), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=True),
        sa.Column("reported_at_s", sa.Double(), nullable=True),
        sa.Column("finished_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'assigned', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_deployment_state"),
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'cancelled') OR (revision IS NOT NULL AND started_at_s IS NOT NULL)",
            name=op.f("ck_deployment_started"),
        ),
        sa.ForeignKeyConstraint(["device"], ["device.id"], name=op.f("fk_deployment_device")),
        sa.ForeignKeyConstraint(
            ["previous"], ["release.digest"], name=op.f("fk_deployment_previous")
        ),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"], name=op.f("fk_deployment_rollout")),
        sa.PrimaryKeyConstraint("rollout", "device", name=op.f("pk_deployment")),
    )
    op.create_index(
        op.f("ix_deployment_device_revision"), "deployment", ["device", "revision"], unique=False
    )
    op.create_index(
        op.f("ix_deployment_rollout_state_position"),
        "deployment",
        ["rollout", "state", "position"],
        unique=False,
    )
    op.create_index(
        "uq_deployment_unfinished",
        "deployment",
        ["device"],
        unique=True,
        sqlite_where=sa.text("state IN ('pending', 'assigned')"),
        postgresql_where=sa.text("state IN ('pending', 'assigned')"),
    )
    op.create_table(
        "desired_state",
        sa.Column("device", sa.String(length=63), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("release", sa.String(length=64), nullable=True),
        sa.Column("rollout", sa.String(length=63), nullable=True),
        sa.Column("issued_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_desired_state_revision")),
        sa.ForeignKeyConstraint(["device"], ["device.id"], name=op.f("fk_desired_state_device")),
        sa.ForeignKeyConstraint(
            ["release"], ["release.digest"], name=op.f("fk_desired_state_release")
        ),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"], name=op.f("fk_desired_state_rollout")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_desired_state")),
    )
    op.create_table(
        "rollout_event",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("rollout", sa.String(length=63), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"], name=op.f("fk_rollout_event_rollout")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout_event")),
    )
    op.create_index(op.f("ix_rollout_event_rollout"), "rollout_event", ["rollout"], unique=False)
    op.create_table(
        "rollout_stage",
        sa.Column("rollout", sa.String(length=63), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("count", sa.Integer(), nullable=True),
        sa.Column("percent", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "(count IS NULL) <> (percent IS NULL)", name=op.f("ck_rollout_stage_count_or_percent")
        ),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"], name=op.f("fk_rollout_stage_rollout")),
        sa.PrimaryKeyConstraint("rollout", "number", name=op.f("pk_rollout_stage")),
    )


def downgrade() -> None:
    """Drop the tables."""
    for table in TABLES:
        op.drop_table(table)
