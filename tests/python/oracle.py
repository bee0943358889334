"""What the tables must hold, computed another way: one DuckDB pass over everything that has arrived.

Nothing here knows of batches, epochs or state. A feed is the multiset of its readable changes; a verdict is a query
over the feeds; a history is a window over the changes of a key.
"""

import json
import pathlib

import duckdb
import pyarrow as pa

REGIONS = "('NORTHEAST', 'SOUTHEAST', 'MIDWEST', 'WEST')"
STATUSES = "('PLACED', 'SHIPPED', 'DELIVERED', 'CANCELLED')"


def connect():
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    con.execute("set timezone = 'UTC'")
    return con


def load_delta(con):
    """DuckDB's delta extension, from its PyPI package, so that no extension repository is asked."""
    import duckdb_extension_delta

    folder = pathlib.Path(duckdb_extension_delta.__file__).parent
    (extension,) = folder.rglob("*.duckdb_extension")
    con.execute(f"load '{extension}'")


def read_feed(folder, columns):
    """The readable records of a landing folder; a value that does not fit its type is null."""
    rows = []
    for file in sorted(pathlib.Path(folder).glob("*.json")):
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows.append([record.get(name) for name, _ in columns])
    text = [pa.array([None if row[i] is None else str(row[i]) for row in rows], pa.string()) for i in range(len(columns))]
    return pa.table(text, names=[name for name, _ in columns])


def feed(con, name, folder, columns, wall=None):
    """Registers a feed as a table. Changes later than the wall have not happened yet."""
    raw = read_feed(folder, columns)
    con.register("raw", raw)
    typed = ", ".join(f"try_cast({c} as {t}) as {c}" for c, t in columns)
    until = f"where updated_at <= timestamptz '{wall}'" if wall else ""
    con.execute(f"create or replace table {name} as select * from (select {typed} from raw) {until}")
    con.unregister("raw")


def tags(rules):
    cases = ", ".join(f"case when {condition} then '{name}' end" for name, condition in rules)
    return f"list_filter([{cases}]::varchar[], lambda tag: tag is not null)"


def history(con, target, source, key, tracked, untracked=(), delete="false"):
    """SCD type 2 by windows: runs of equal tracked values, closed by the next change of any kind."""
    values = ", ".join([*tracked, *untracked])
    con.execute(
        f"""
        create or replace table {target} as
        with changes as (
            select distinct {key}, {values}, updated_at as changed_at, coalesce({delete}, false) as gone,
                row({", ".join(tracked) or "0"}) as seen
            from {source}
        ), neighbours as (
            select *, lag(gone) over same_key as was_gone, lag(seen) over same_key as seen_before,
                row_number() over same_key as place
            from changes window same_key as (partition by {key} order by changed_at)
        ), runs as (
            select *, sum(case when gone or place = 1 or was_gone or seen is distinct from seen_before then 1 else 0 end)
                over (partition by {key} order by changed_at) as run
            from neighbours
        ), bounds as (
            select {key}, run, bool_or(gone) as gone, min(changed_at) as start_at, max(changed_at) as last_at
            from runs group by {key}, run
        ), closed as (
            select *, lead(start_at) over (partition by {key} order by run) as end_at from bounds
        )
        select r.{key}, {", ".join("r." + c for c in [*tracked, *untracked])}, c.start_at as __START_AT, c.end_at as __END_AT
        from closed c join runs r on r.{key} = c.{key} and r.changed_at = c.last_at
        where not c.gone
        """
    )


def difference(con, actual, expected):
    """Rows that are only in one of two tables with the same columns, as multisets."""
    columns = ", ".join(f'"{row[0]}"' for row in con.execute(f"describe {expected}").fetchall())
    missing = con.execute(f"select {columns} from {expected} except all select {columns} from {actual}").fetchall()
    surplus = con.execute(f"select {columns} from {actual} except all select {columns} from {expected}").fetchall()
    return missing, surplus
