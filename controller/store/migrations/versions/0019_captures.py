"""Keep which requests devices are to capture, and what they have sent.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, and what each model of a device is to capture."""
    op.create_table(
        "capture",
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("selector", sa.String(1024), nullable=False),
        sa.Column("rule", sa.JSON(), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_capture")),
    )
    op.create_table(
        "captured_sample",
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("sample", sa.String(32), nullable=False),
        sa.Column("capture", sa.String(32), nullable=False),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("head", sa.LargeBinary(2048), nullable=False),
        sa.Column("pieces", sa.Integer(), nullable=False),
        sa.Column("lacks", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("device", "sample", name=op.f("pk_captured_sample")),
    )
    op.create_index(
        op.f("ix_captured_sample_model_stored_at_s"), "captured_sample", ["model", "stored_at_s"]
    )
    op.create_table(
        "captured_piece",
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("sample", sa.String(32), nullable=False),
        sa.Column("piece", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("blob", sa.LargeBinary(122880), nullable=False),
        sa.ForeignKeyConstraint(
            ["device", "sample"],
            ["captured_sample.device", "captured_sample.sample"],
            name=op.f("fk_captured_piece_device_sample"),
        ),
        sa.PrimaryKeyConstraint("device", "sample", "piece", name=op.f("pk_captured_piece")),
    )
    op.add_column("desired_model", sa.Column("capture", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Remove them, with all samples; devices are asked for nothing any more."""
    op.drop_column("desired_model", "capture")
    op.drop_table("captured_piece")
    op.drop_index(op.f("ix_captured_sample_model_stored_at_s"), "captured_sample")
    op.drop_table("captured_sample")
    op.drop_table("capture")
