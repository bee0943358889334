"""Every Delta table under a storage folder is read alike by delta-rs, DuckDB, Polars and Sail.

    python readers.py STORAGE
"""

import functools
import json
import sys

import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

import oracle
from common import report, tables


def delta_rs(path):
    # The query engine of delta-rs honours deletion vectors; its conversion to a pyarrow dataset refuses them.
    return pa.table(QueryBuilder().register("t", DeltaTable(str(path))).execute("select * from t").read_all())


def duckdb(con, path):
    return con.execute(f"from delta_scan('{path}')").to_arrow_table()


def by_polars(path):
    return polars.scan_delta(str(path)).collect().to_arrow()


@functools.cache
def sail():
    """A Spark session on Sail, in this process."""
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer()
    server.start(background=True)
    _, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return server, session


def by_sail(path):
    return sail()[1].read.format("delta").load(str(path)).toArrow()


def rows(table):
    """The rows as sorted JSON, so that readers may differ in how they spell a type, but in nothing else."""
    names = sorted(table.column_names)
    return sorted(json.dumps([row[name] for name in names], default=plain) for row in table.select(names).to_pylist())


def plain(value):
    return value.hex() if isinstance(value, bytes) else str(value)


def alike(con, storage):
    """Reads every table under a storage folder by four readers; true if they agree."""
    found = tables(storage)
    if not found:
        sys.exit(f"no Delta table under {storage}")
    equal = True
    for name, path in found.items():
        expected = rows(delta_rs(path))
        for reader, table in (("DuckDB", duckdb(con, path)), ("Polars", by_polars(path)), ("Sail", by_sail(path))):
            actual = rows(table)
            missing = sorted(set(expected) - set(actual))
            surplus = sorted(set(actual) - set(expected))
            if not missing and not surplus and len(actual) != len(expected):
                missing = [f"{len(expected)} rows against {len(actual)}"]
            agrees = report(f"{name}, {reader} against delta-rs", missing, surplus)
            print(f"{name}: {len(expected)} rows, {reader} {'agrees' if agrees else 'differs'}", flush=True)
            equal &= agrees
    return equal


def main():
    con = oracle.connect()
    oracle.load_delta(con)
    if not alike(con, sys.argv[1]):
        sys.exit("the readers disagree")


if __name__ == "__main__":
    main()
