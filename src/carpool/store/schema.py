"""The tables, as the newest migration leaves them."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from carpool.store.limits import LIMIT_NAMES

metadata = MetaData()


def _limits() -> list[Column[int]]:
    return [Column(name, BigInteger) for name in LIMIT_NAMES]


# One row. Every change of people and keys adds one to it in its own transaction.
key_version = Table(
    "key_version",
    metadata,
    Column("only", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
)

people = Table(
    "people",
    metadata,
    Column("person_id", String, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("weight", Double, nullable=False),
    *_limits(),
)

keys = Table(
    "keys",
    metadata,
    Column("key_id", String, primary_key=True),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("person_id", String, ForeignKey("people.person_id"), nullable=False),
    Column("name", String, nullable=False),
    Column("models", JSON(none_as_null=True)),
    *_limits(),
    Column("lane", String, nullable=False),
    Column("is_private", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("record_until", Double),
)

# One row, empty until there is a first key.
admin_key = Table(
    "admin_key",
    metadata,
    Column("only", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String),
    Column("secret_sha256", LargeBinary),
    Column("created_at", Double),
)

# No foreign keys: a row that comes late, from a spool, is never refused.
usage = Table(
    "usage",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("started_at", Double, nullable=False),
    # Days since 1970-01-01 UTC: the databases round a division each in its own way.
    Column("day", BigInteger, nullable=False),
    Column("person_id", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("model", String, nullable=False),
    Column("backend", String, nullable=False),
    Column("api", String, nullable=False),
    Column("lane", String, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("usage_source", String, nullable=False),
    Column("queue_ms", Double, nullable=False),
    Column("ttft_ms", Double),
    Column("tpot_ms", Double),
    Column("total_ms", Double, nullable=False),
    Column("outcome", String, nullable=False),
    Column("status", BigInteger, nullable=False),
    Column("is_stream", Boolean, nullable=False),
    Column("is_fallback", Boolean, nullable=False),
    Index("usage_by_time", "started_at"),
    Index("usage_by_person", "person_id", "started_at"),
    Index("usage_by_key", "key_id", "started_at"),
)

# Figures of many moments in a packed chunk; `source` tells apart the processes that write.
series = Table(
    "series",
    metadata,
    Column("resolution", BigInteger, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("model", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("source", String, primary_key=True),
    Column("chunk", LargeBinary, nullable=False),
)

# The newest for each key, of which `calibration_id` is a hash.
calibrations = Table(
    "calibrations",
    metadata,
    Column("calibration_id", String, primary_key=True),
    Column("engine", String, nullable=False),
    Column("version", String, nullable=False),
    Column("model", String, nullable=False),
    Column("device", String, nullable=False),
    Column("flags", String, nullable=False),
    Column("address", String, nullable=False),
    Column("measured_at", Double, nullable=False),
    Column("is_applied", Boolean, nullable=False),
    Column("figures", JSON, nullable=False),
    Index("calibrations_by_model", "engine", "model", "measured_at"),
)

# The text of requests, of keys that are to be recorded; short of lifetime.
recorded_requests = Table(
    "recorded_requests",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("recorded_at", Double, nullable=False),
    Column("key_id", String, nullable=False),
    Column("person_id", String, nullable=False),
    Column("model", String, nullable=False),
    Column("body", Text, nullable=False),
    Index("recorded_requests_by_key", "key_id", "recorded_at"),
)
