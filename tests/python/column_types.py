"""Tables of random schemas and rows, written over several epochs, hold what was put into them for every reader.

    python column_types.py [--seeds N] [--seed S]

Each seed makes a project with two tables of the same rows, one with deletion vectors and one without. Rows come as
Parquet, are updated and deleted by key, and are read by delta-rs, DuckDB, Polars, Sail and, without vectors, by pyarrow.
Then the tables are put in order and read again.
"""

import argparse
import datetime
import decimal
import json
import pathlib
import random
import shutil
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable

import oracle
import readers
from common import report, silverflow, tables

UTC = datetime.timezone.utc
SQL = """
CREATE STREAMING TABLE events AS SELECT * FROM STREAM read_files('landing/events', format => 'parquet');
{targets}
"""
TARGET = """
CREATE STREAMING TABLE {name} {properties};
CREATE FLOW {name}_flow AS AUTO CDC INTO {name} FROM STREAM(events) KEYS (k) APPLY AS DELETE WHEN gone
  SEQUENCE BY seq COLUMNS * EXCEPT (gone, _rescued_data) STORED AS SCD TYPE 1;
"""
TARGETS = {"marked": "", "rewritten": "TBLPROPERTIES ('silverflow.sink' = 'rewrite')"}


def random_type(dice, depth=0):
    """An Arrow type that Parquet and Delta both have, and a way to make a value of it."""
    plain = [
        (pa.int8(), lambda: dice.randint(-128, 127)),
        (pa.int16(), lambda: dice.choice([-(2**15), 0, 2**15 - 1])),
        (pa.int32(), lambda: dice.choice([-(2**31), 1, 2**31 - 1])),
        (pa.int64(), lambda: dice.choice([-(2**63), -1, 2**63 - 1])),
        (pa.float64(), lambda: dice.choice([0.0, -1.5, 1e300, 5e-324])),
        (pa.bool_(), lambda: dice.random() < 0.5),
        (pa.string(), lambda: dice.choice(["", "a", "Größe", "\U0001f600", "x" * 100])),
        (pa.binary(), lambda: dice.choice([b"", b"\x00\xff", b"text"])),
        (pa.date32(), lambda: datetime.date(1970, 1, 1) + datetime.timedelta(dice.choice([-719162, -1, 0, 20000]))),
        (pa.timestamp("us"), lambda: datetime.datetime(1969, 12, 31) + datetime.timedelta(microseconds=dice.randrange(10**14))),
        (pa.timestamp("us", "UTC"), lambda: datetime.datetime(2024, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=dice.randrange(10**14))),
    ]
    precision = dice.randint(1, 38)
    scale = dice.randint(0, precision)
    limit = 10**precision - 1
    context = decimal.Context(prec=60)
    plain.append((
        pa.decimal128(precision, scale),
        lambda: decimal.Decimal(dice.choice([-limit, -1, 0, limit])).scaleb(-scale, context),
    ))
    if depth < 2 and dice.random() < 0.4:
        inner, make = random_type(dice, depth + 1)
        other, make_other = random_type(dice, depth + 1)
        some = lambda make: None if dice.random() < 0.2 else make()
        return dice.choice([
            (pa.list_(inner), lambda: [some(make) for _ in range(dice.randrange(3))]),
            (pa.struct([("a", inner), ("b", other)]), lambda: {"a": some(make), "b": some(make_other)}),
            (pa.map_(pa.string(), inner), lambda: [(f"k{i}", some(make)) for i in range(dice.randrange(3))]),
        ])
    return dice.choice(plain)


def normal(value):
    """A value as text, the same for whatever a reader makes of it."""
    if isinstance(value, dict):
        return {str(k): normal(v) for k, v in value.items()}
    if isinstance(value, list):
        # A map comes as pairs, as records of key and value, or as a dictionary.
        if value and all(isinstance(x, tuple) and len(x) == 2 for x in value):
            return {str(k): normal(v) for k, v in value}
        if value and all(isinstance(x, dict) and set(x) == {"key", "value"} for x in value):
            return {str(x["key"]): normal(x["value"]) for x in value}
        return [normal(x) for x in value] or None
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def lines(rows):
    # An empty map and an empty list look alike in some readers; both are no value here, as {} is.
    return sorted(json.dumps({k: normal(v) or None if isinstance(v, (dict, list)) else normal(v) for k, v in row.items()},
                             sort_keys=True) for row in rows)


def check(con, project, expected, moment):
    found = tables(project / "lakehouse")
    equal = True
    for name in TARGETS:
        path = found[f"default.{name}"]
        read = {
            "delta-rs": lambda: readers.delta_rs(path),
            "DuckDB": lambda: readers.duckdb(con, path),
            "Polars": lambda: readers.by_polars(path),
            "Sail": lambda: readers.by_sail(path),
        }
        if name == "rewritten":
            read["pyarrow"] = lambda: DeltaTable(str(path)).to_pyarrow_table()
        for reader, table in read.items():
            actual = lines(table().to_pylist())
            wanted = lines(expected)
            missing = [x for x in wanted if x not in set(actual)]
            surplus = [x for x in actual if x not in set(wanted)]
            if not missing and not surplus and len(actual) != len(wanted):
                missing = [f"{len(wanted)} rows against {len(actual)}"]
            equal &= report(f"{moment}: {name} by {reader}", missing, surplus)
    return equal


def one(seed):
    dice = random.Random(seed)
    columns = [(f"c{i}", *random_type(dice)) for i in range(dice.randint(2, 7))]
    schema = pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("gone", pa.bool_())] + [(n, t) for n, t, _ in columns])
    project = pathlib.Path(tempfile.mkdtemp(prefix="silverflow-types-"))
    (project / "landing" / "events").mkdir(parents=True)
    (project / "transformations").mkdir()
    (project / "spark-pipeline.yml").write_text(
        "name: types\nstorage: lakehouse\nlibraries:\n  - glob:\n      include: transformations/**\n")
    targets = "".join(TARGET.format(name=name, properties=properties) for name, properties in TARGETS.items())
    (project / "transformations" / "pipeline.sql").write_text(SQL.format(targets=targets))
    con = oracle.connect()
    oracle.load_delta(con)
    newest, equal, spec = {}, True, project / "spark-pipeline.yml"
    for batch in range(4):
        rows = []
        for _ in range(40):
            row = {"k": dice.randrange(60), "seq": batch * 1000 + len(rows), "gone": batch > 0 and dice.random() < 0.3}
            row |= {name: None if dice.random() < 0.2 else make() for name, _, make in columns}
            rows.append(row)
            newest[row["k"]] = row
        table = pa.Table.from_pylist(rows, schema=schema)
        pyarrow.parquet.write_table(table, project / "landing" / "events" / f"{batch}.parquet")
        silverflow("run", "--spec", spec)
    expected = [{k: v for k, v in row.items() if k != "gone"} for row in newest.values() if not row["gone"]]
    equal &= check(con, project, expected, f"seed {seed}")
    silverflow("optimize", "--vacuum", "--spec", spec)
    equal &= check(con, project, expected, f"seed {seed} in order")
    print(f"seed {seed}: {len(expected)} rows of {[str(t) for _, t, _ in columns]}", flush=True)
    if equal:
        shutil.rmtree(project)
    return equal


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()
    results = [one(seed) for seed in range(arguments.seed, arguments.seed + arguments.seeds)]
    if not all(results):
        sys.exit("a reader found other rows")


if __name__ == "__main__":
    main()
