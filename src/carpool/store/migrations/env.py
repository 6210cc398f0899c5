"""Alembic's entry: the caller gives the connection, its transaction and its lock."""

from alembic import context

from carpool.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
