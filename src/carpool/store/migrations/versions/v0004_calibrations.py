"""What was measured of models on engines and devices."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "calibrations",
        sa.Column("calibration_id", sa.String, primary_key=True),
        sa.Column("engine", sa.String, nullable=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("flags", sa.String, nullable=False),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("measured_at", sa.Double, nullable=False),
        sa.Column("is_applied", sa.Boolean, nullable=False),
        sa.Column("figures", sa.JSON, nullable=False),
    )
    op.create_index("calibrations_by_model", "calibrations", ["engine", "model", "measured_at"])
