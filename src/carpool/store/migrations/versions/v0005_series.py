"""Figures over time, for the dashboard and for signals: packed chunks by resolution and start."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "series",
        sa.Column("resolution", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("source", sa.String, primary_key=True),
        sa.Column("chunk", sa.LargeBinary, nullable=False),
    )
