"""Applies the revisions on the connection that database.py opened and locked. Alembic runs this file."""

from alembic import context

from service.experiments.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite too: database.py began the transaction itself
)
with context.begin_transaction():
    context.run_migrations()
