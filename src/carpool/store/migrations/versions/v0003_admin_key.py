"""The key of the admin API: one row, empty until a key is made."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    admin_key = op.create_table(
        "admin_key",
        sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key_id", sa.String),
        sa.Column("secret_sha256", sa.LargeBinary),
        sa.Column("created_at", sa.Double),
    )
    op.bulk_insert(admin_key, [{"only": 1}])
