"""Several models on one device: what each should run, and what the device says of each.

The model of what there is already is the name of its release. A device that was given no release by
a rollout has the model of that rollout. What devices report of releases that are unknown belongs to
the model that they should run.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

UNFINISHED = "uq_deployment_unfinished"
IS_UNFINISHED = "state IN ('pending', 'assigned', 'waiting')"


def upgrade() -> None:
    """Make the tables, fill them, and remove what they replace."""
    op.create_table(
        "desired_model",
        sa.Column("device", sa.String(length=63), nullable=False),
        sa.Column("model", sa.String(length=63), nullable=False),
        *_columns(),
        sa.Column("removed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint(
            "NOT removed OR release IS NULL", name=op.f("ck_desired_model_removed")
        ),
        sa.ForeignKeyConstraint(
            ["device"], ["device.id"], name=op.f("fk_desired_model_device")
        ),
        sa.ForeignKeyConstraint(
            ["release"], ["release.digest"], name=op.f("fk_desired_model_release")
        ),
        sa.ForeignKeyConstraint(
            ["rollout"], ["rollout.id"], name=op.f("fk_desired_model_rollout")
        ),
        sa.PrimaryKeyConstraint("device", "model", name=op.f("pk_desired_model")),
    )
    op.create_table(
        "device_model",
        sa.Column("device", sa.String(length=63), nullable=False),
        sa.Column("model", sa.String(length=63), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("release", sa.String(length=64), nullable=True),
        sa.Column("variant", sa.String(length=63), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("last_error", sa.String(length=566), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["device.id"], name=op.f("fk_device_model_device")),
        sa.PrimaryKeyConstraint("device", "model", name=op.f("pk_device_model")),
    )
    op.add_column("policy", sa.Column("model", sa.String(length=63), nullable=True))
    _name_rollouts()
    _fill()
    op.drop_index(op.f("ix_desired_state_policy_generation"), table_name="desired_state")
    with op.batch_alter_table("desired_state", copy_from=_desired_state(*_of_model())) as batch:
        for column in _columns():
            batch.drop_column(column.name)
    op.create_index(
        op.f("ix_desired_model_policy_generation"), "desired_model", ["policy_generation"]
    )
    op.add_column(
        "device", sa.Column("desired_form", sa.Integer(), server_default="1", nullable=False)
    )
    for name in ("reported_release", "variant", "phase"):
        op.drop_column("device", name)


def downgrade() -> None:
    """Leave each device one model: the one that it was given last.

    Deployments of the others that have not finished are cancelled: the older controller would take
    them for orders about the same model. A policy for one model goes: it would hold for all.
    """
    op.add_column(
        "device", sa.Column("reported_release", sa.String(length=64), nullable=True)
    )
    op.add_column("device", sa.Column("variant", sa.String(length=63), nullable=True))
    op.add_column(
        "device", sa.Column("phase", sa.String(length=16), server_default="", nullable=False)
    )
    _leave_one_model()
    for name, value in (("reported_release", "release"), ("variant", "variant")):
        op.execute(
            f"UPDATE device SET {name} = (SELECT device_model.{value} FROM device_model"  # noqa: S608 - constants
            " WHERE device_model.device = device.id)"
        )
    op.execute(
        "UPDATE device SET phase = COALESCE((SELECT device_model.phase FROM device_model"
        " WHERE device_model.device = device.id), '')"
    )
    op.drop_column("device", "desired_form")
    op.execute(
        "UPDATE deployment SET state = 'cancelled', error_code = 'controller.downgrade',"  # noqa: S608 - constants
        " detail = 'the older controller knows one model for each device'"
        f" WHERE {IS_UNFINISHED} AND model <> COALESCE((SELECT desired_model.model"
        " FROM desired_model WHERE desired_model.device = deployment.device),"
        " (SELECT MIN(other.model) FROM deployment AS other"
        f" WHERE other.device = deployment.device AND other.{IS_UNFINISHED}))"
    )
    op.drop_index(op.f("ix_desired_model_policy_generation"), table_name="desired_model")
    with op.batch_alter_table("desired_state", copy_from=_desired_state()) as batch:
        for column in _columns():
            batch.add_column(column)
        batch.create_foreign_key(
            op.f("fk_desired_state_release"), "release", ["release"], ["digest"]
        )
        batch.create_foreign_key(op.f("fk_desired_state_rollout"), "rollout", ["rollout"], ["id"])
    for column in _columns():
        if column.nullable:
            op.execute(_copied_back(column.name, "NULL"))
        else:
            op.execute(_copied_back(column.name, "0"))
    op.execute("UPDATE desired_state SET release_revision = revision WHERE release_revision = 0")
    op.create_index(
        op.f("ix_desired_state_policy_generation"), "desired_state", ["policy_generation"]
    )
    op.drop_index(UNFINISHED, table_name="deployment")
    _unfinished_index("device")
    op.drop_column("deployment", "is_first")
    op.drop_column("deployment", "model")
    op.drop_column("rollout", "model")
    op.execute("DELETE FROM policy WHERE model IS NOT NULL")
    op.execute("UPDATE policy_set SET generation = generation + 1")
    op.drop_column("policy", "model")
    op.drop_table("device_model")
    op.drop_table("desired_model")


def _name_rollouts() -> None:
    """Give rollouts and deployments the names of their models."""
    # The database has the defaults, because SQLite adds a NOT NULL column only with a default.
    for table in ("rollout", "deployment"):
        op.add_column(
            table, sa.Column("model", sa.String(length=63), server_default="", nullable=False)
        )
    op.add_column(
        "deployment",
        sa.Column("is_first", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.execute(
        "UPDATE rollout SET model = (SELECT name FROM release WHERE digest = rollout.release)"
    )
    op.execute(
        "UPDATE deployment SET model ="
        " (SELECT rollout.model FROM rollout WHERE rollout.id = deployment.rollout)"
    )
    # A rollback to what was there before may have brought other models to some devices.
    op.execute(
        "UPDATE deployment SET state = 'cancelled', error_code = 'controller.upgrade',"  # noqa: S608 - constants
        " detail = 'a rollout is of one model now, and this was of another one'"
        f" WHERE {IS_UNFINISHED} AND EXISTS (SELECT 1 FROM release"
        " WHERE release.digest = deployment.release AND release.name <> deployment.model)"
    )
    op.drop_index(UNFINISHED, table_name="deployment")
    _unfinished_index("device", "model")


def _fill() -> None:
    """Tell apart what each device should run, and what it reports, by model."""
    op.execute(
        "INSERT INTO desired_model (device, model, release, rollout, release_revision,"
        " policy_name, policy, policy_generation)"
        " SELECT wanted.device, COALESCE(release.name, rollout.model), wanted.release,"
        " wanted.rollout, wanted.release_revision, wanted.policy_name, wanted.policy,"
        " wanted.policy_generation FROM desired_state AS wanted"
        " LEFT JOIN release ON release.digest = wanted.release"
        " LEFT JOIN rollout ON rollout.id = wanted.rollout"
        " WHERE COALESCE(release.name, rollout.model) IS NOT NULL"
    )
    op.execute(
        "INSERT INTO device_model (device, model, revision, release, variant, phase, last_error)"
        " SELECT device.id, COALESCE(release.name, desired_model.model, ''),"
        " device.reported_revision, device.reported_release, device.variant, device.phase, ''"
        " FROM device LEFT JOIN release ON release.digest = device.reported_release"
        " LEFT JOIN desired_model ON desired_model.device = device.id"
        " WHERE device.reported_release IS NOT NULL OR desired_model.model IS NOT NULL"
    )


def _leave_one_model() -> None:
    """Forget all models of each device but the one that it was given last."""
    op.execute(
        "DELETE FROM desired_model WHERE removed OR EXISTS (SELECT 1 FROM desired_model AS newer"
        " WHERE newer.device = desired_model.device AND NOT newer.removed"
        " AND (newer.release_revision > desired_model.release_revision"
        " OR (newer.release_revision = desired_model.release_revision"
        " AND newer.model < desired_model.model)))"
    )
    op.execute(
        "DELETE FROM device_model WHERE EXISTS (SELECT 1 FROM desired_model"
        " WHERE desired_model.device = device_model.device"
        " AND desired_model.model <> device_model.model)"
    )
    op.execute(
        "DELETE FROM device_model WHERE EXISTS (SELECT 1 FROM device_model AS other"
        " WHERE other.device = device_model.device AND other.model < device_model.model)"
    )


def _copied_back(column: str, nothing: str) -> str:
    return (
        f"UPDATE desired_state SET {column} = COALESCE((SELECT desired_model.{column}"  # noqa: S608 - constants
        f" FROM desired_model WHERE desired_model.device = desired_state.device), {nothing})"
    )


def _unfinished_index(*columns: str) -> None:
    """Make the index by which a device has one unfinished deployment, or one of each model."""
    op.create_index(
        UNFINISHED,
        "deployment",
        list(columns),
        unique=True,
        sqlite_where=sa.text(IS_UNFINISHED),
        postgresql_where=sa.text(IS_UNFINISHED),
    )


def _columns() -> tuple[sa.Column[object], ...]:
    """Return the columns of a desired state that each of its models now has."""
    return (
        sa.Column("release", sa.String(length=64), nullable=True),
        sa.Column("rollout", sa.String(length=63), nullable=True),
        sa.Column("release_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("policy_name", sa.String(length=63), nullable=True),
        sa.Column("policy", sa.JSON(), nullable=True),
        sa.Column("policy_generation", sa.BigInteger(), server_default="0", nullable=False),
    )


def _of_model() -> tuple[sa.schema.SchemaItem, ...]:
    return (
        *_columns(),
        sa.ForeignKeyConstraint(
            ["release"], ["release.digest"], name=op.f("fk_desired_state_release")
        ),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"], name=op.f("fk_desired_state_rollout")),
    )


def _desired_state(*more: sa.schema.SchemaItem) -> sa.Table:
    """Return the table as it is, because SQLite has to copy it and tells too little about it."""
    return sa.Table(
        "desired_state",
        sa.MetaData(),
        sa.Column("device", sa.String(length=63), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("issued_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint("revision >= 1", name="ck_desired_state_revision"),
        sa.ForeignKeyConstraint(["device"], ["device.id"], name="fk_desired_state_device"),
        sa.PrimaryKeyConstraint("device", name="pk_desired_state"),
        *more,
    )
