"""Requests of keys whose holders agreed to have them kept for a while."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("keys", sa.Column("record_until", sa.Double))
    op.create_table(
        "recorded_requests",
        sa.Column("request_id", sa.String, primary_key=True),
        sa.Column("recorded_at", sa.Double, nullable=False),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("person_id", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("recorded_requests_by_key", "recorded_requests", ["key_id", "recorded_at"])
