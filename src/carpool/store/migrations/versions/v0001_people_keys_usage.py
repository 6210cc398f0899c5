"""People, their keys, and one row of usage a request."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_version = op.create_table(
        "key_version",
        sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(key_version, [{"only": 1, "version": 1}])
    op.create_table(
        "people",
        sa.Column("person_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("weight", sa.Double, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("key_id", sa.String, primary_key=True),
        sa.Column("secret_sha256", sa.LargeBinary, nullable=False),
        sa.Column("person_id", sa.String, sa.ForeignKey("people.person_id"), nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("models", sa.JSON),
        sa.Column("rpm", sa.BigInteger),
        sa.Column("tpm", sa.BigInteger),
        sa.Column("max_in_flight", sa.BigInteger),
        sa.Column("max_prompt_tokens", sa.BigInteger),
        sa.Column("max_output_tokens", sa.BigInteger),
        sa.Column("daily_tokens", sa.BigInteger),
        sa.Column("monthly_tokens", sa.BigInteger),
        sa.Column("lane", sa.String, nullable=False),
        sa.Column("is_private", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
    )
    op.create_table(
        "usage",
        sa.Column("request_id", sa.String, primary_key=True),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("day", sa.BigInteger, nullable=False),
        sa.Column("person_id", sa.String, nullable=False),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("backend", sa.String, nullable=False),
        sa.Column("api", sa.String, nullable=False),
        sa.Column("lane", sa.String, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("usage_source", sa.String, nullable=False),
        sa.Column("queue_ms", sa.Double, nullable=False),
        sa.Column("ttft_ms", sa.Double),
        sa.Column("tpot_ms", sa.Double),
        sa.Column("total_ms", sa.Double, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("status", sa.BigInteger, nullable=False),
        sa.Column("is_stream", sa.Boolean, nullable=False),
        sa.Column("is_fallback", sa.Boolean, nullable=False),
    )
    op.create_index("usage_by_time", "usage", ["started_at"])
    op.create_index("usage_by_person", "usage", ["person_id", "started_at"])
    op.create_index("usage_by_key", "usage", ["key_id", "started_at"])
