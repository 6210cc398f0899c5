"""Limits of people, beside those of their keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in (
        "rpm",
        "tpm",
        "max_in_flight",
        "max_prompt_tokens",
        "max_output_tokens",
        "daily_tokens",
        "monthly_tokens",
    ):
        op.add_column("people", sa.Column(name, sa.BigInteger))
