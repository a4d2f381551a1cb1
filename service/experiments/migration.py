"""Brings the experiments' database to the tables of this release, whichever release made it.

A release only adds: tables, and columns that may be null. What a database lacks is added when a replica
starts. Older releases do not notice, so two may serve one database during a rolling update, and going back
takes no step: what was added stays, and counts again after the next update.

What an older release could not use, such as a column that is gone, needs another `tables.VERSION`, statements
here that lead to it, and two minor releases: the first does without the column, and takes both versions.
"""

from sqlalchemy import Column, Connection, inspect, select, update
from sqlalchemy.schema import CreateColumn

from headroom.service.experiments.tables import BUILD_VERSION, VERSION, metadata, schema_version

TAKEN = (VERSION, BUILD_VERSION)


def is_empty(db: Connection) -> bool:
    """Return whether the database has none of our tables."""
    return metadata.tables.keys().isdisjoint(inspect(db).get_table_names())


def make(db: Connection) -> None:
    """Make all tables in an empty database."""
    metadata.create_all(db)
    db.execute(schema_version.insert().values(version=VERSION))


def problem(db: Connection) -> str | None:
    """Return why this release cannot use a database that has tables, as a clause; None if it can."""
    version = None
    if inspect(db).has_table(schema_version.name):
        version = db.scalar(select(schema_version.c.version))
    if version in TAKEN:
        return None
    if version is not None and version > max(TAKEN):
        return (
            f"the experiments' database is of a newer release of headroom (tables of version {version}; this "
            f"release takes {VERSION}); use that release, or set HEADROOM_DATABASE_URL to another database"
        )
    return (
        "the experiments' database is older than release 0.2 of headroom, or not headroom's; set "
        "HEADROOM_DATABASE_URL to another database"
    )


def extend(db: Connection) -> None:
    """Add the tables, columns and indexes that the database lacks."""
    inspector = inspect(db)
    present = set(inspector.get_table_names())
    columns = inspector.get_multi_columns(filter_names=sorted(present & metadata.tables.keys()))
    names = {table: {column["name"] for column in of_table} for (_, table), of_table in columns.items()}
    for table in metadata.sorted_tables:
        if table.name not in present:
            table.create(db)
            continue
        missing = [column for column in table.columns if column.name not in names[table.name]]
        for column in missing:
            _add_column(db, column)
        if missing:  # an index of one of them
            for index in table.indexes:
                index.create(db, checkfirst=True)
    db.execute(update(schema_version).where(schema_version.c.version != VERSION).values(version=VERSION))


def _add_column(db: Connection, column: Column[object]) -> None:
    quote = db.dialect.identifier_preparer.quote
    declaration = CreateColumn(column).compile(dialect=db.dialect)
    db.exec_driver_sql(f"ALTER TABLE {quote(column.table.name)} ADD COLUMN {declaration}")
