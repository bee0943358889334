"""An unmodified client against `silverflow serve`: a catalogue of what it can say, the pipelines command line, and the
example in Python against the one in SQL.

    python client.py SCRATCH [brief]

A brief check leaves out what does not depend on the release of the client.
"""

import datetime
import decimal
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from catalogue import CASES
from common import ROOT, TARGET, silverflow


class Server:
    """`silverflow serve` on a port that is free."""

    def __init__(self, *arguments, binary=TARGET / "silverflow"):
        command = [str(binary), "serve", "--address", "127.0.0.1:0", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.remote = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def plain(value):
    """Rows as tuples, whatever the snippet gives."""
    from pyspark.sql import DataFrame, Row

    if isinstance(value, DataFrame):
        value = value.collect()
    if isinstance(value, list) and value and all(isinstance(one, Row) for one in value):
        return [tuple(one) for one in value]
    return value


def raised(call):
    """The exception of a call: its class, its state in SQL, its parameters."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, error.getSqlState(), error.getMessageParameters()


def catalogue(remote):
    """Runs every snippet; gives those that answer otherwise."""
    from pyspark.sql import Row, SparkSession, Window, types
    from pyspark.sql import functions as F

    spark = SparkSession.builder.remote(remote).getOrCreate()
    moment = datetime.datetime(2024, 1, 1)
    people = spark.createDataFrame([(1, "ann", 30), (2, "bob", 40), (3, None, None)], ["id", "name", "age"])
    names = {
        "spark": spark,
        "F": F,
        "W": Window,
        "Row": Row,
        "people": people,
        "other": spark.createDataFrame([(1, "one"), (9, "nine")], ["id", "word"]),
        "one": spark.createDataFrame([("x",)], ["a"]),
        "reduce": functools.reduce,
        "Decimal": decimal.Decimal,
        "date": datetime.date,
        "datetime": datetime.datetime,
        "timezone": datetime.timezone,
        "moment": moment,
        "FILE": __file__,
        "raised": raised,
        **{name: getattr(types, name) for name in ("StructType", "StructField", "LongType", "StringType", "ArrayType", "MapType")},
    }
    wrong = []
    for snippet, expected in CASES:
        try:
            found = plain(eval(snippet, names))  # noqa: S307
        except Exception as error:  # noqa: BLE001
            code = re.match(r"\[([A-Z_.]+)\]", str(error))
            found = code.group(1) if code else f"{type(error).__name__}: {error}"
        unordered = isinstance(expected, list) and not any(word in snippet for word in ("orderBy", "sort(", "columns"))
        same = (
            sorted(map(repr, found)) == sorted(map(repr, expected))
            if unordered and isinstance(found, list)
            else found == expected
        )
        if not same:
            wrong.append(f"{snippet}\n    expected {expected!r}\n    found    {found!r}")
    spark.stop()
    return wrong


def contents(spec):
    """The rows of every table of the example, as sorted JSON."""
    tables = [f"{name}_bronze" for name in ("customers", "products", "orders", "order_items")]
    tables += [f"silver_{name}" for name in ("customers", "products", "orders", "order_items")]
    tables += ["silver_orders_quarantine", "silver_order_items_quarantine"]
    found = {}
    for table in tables:
        rows = silverflow("query", "--spec", spec, f"SELECT * FROM {table}", "--format", "json").splitlines()
        # What was rescued says from which file, and that lies beside this project or in it.
        rows = [re.sub(r"/[^\" ]*/landing/", "landing/", row) for row in rows]
        found[table] = sorted(json.dumps(json.loads(row), sort_keys=True) for row in rows)
    return found


def differences(expected, found):
    return [name for name in expected if expected[name] != found.get(name)]


def project(scratch, name, source):
    """A copy of an example in a folder of its own, beside the data of both."""
    folder = scratch / name
    shutil.copytree(ROOT / "examples" / source, folder, ignore=shutil.ignore_patterns("lakehouse", "__pycache__"))
    return folder / "spark-pipeline.yml"


NATIVE = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

@dp.table(comment="events as they arrived")
def events():
    return spark.readStream.format("json").schema("id INT, name STRING, op STRING, seq INT").load("landing")

@dp.temporary_view
def upper():
    return spark.readStream.table("events").select("id", F.upper("name").alias("name"), "op", "seq")

dp.create_streaming_table("people")
dp.create_auto_cdc_flow(target="people", source="upper", keys=["id"], sequence_by="seq",
                        apply_as_deletes=F.expr("op = 'D'"), except_column_list=["op", "seq"], stored_as_scd_type=1)

dp.create_streaming_table("names", schema="name STRING")

@dp.append_flow(target="names")
def named():
    return spark.readStream.table("upper").where("op <> 'D'").select("name")
"""


# What the protocol has a field for since 4.3.
HISTORY = """
dp.create_streaming_table("history")
dp.create_auto_cdc_flow(target="history", source="upper", keys=["id"], sequence_by="seq", except_column_list=["op"],
                        stored_as_scd_type=2, track_history_column_list=["name"], name="versions")
"""


def has_history():
    """Whether the client's own AUTO CDC keeps versions."""
    from pyspark.sql.connect import proto

    return "SCD_TYPE_2" in proto.PipelineCommand.DefineFlow.SCDType.keys()


def native(folder):
    """A project as the client's own command line knows it, with nothing of ours."""
    (folder / "transformations").mkdir(parents=True)
    (folder / "landing").mkdir()
    spec = folder / "spark-pipeline.yml"
    spec.write_text("name: native\nstorage: lake\nlibraries: [{glob: {include: transformations/**}}]\n")
    (folder / "transformations" / "people.py").write_text(NATIVE + HISTORY * has_history())
    events = [
        {"id": 1, "name": "ann", "op": "U", "seq": 1},
        {"id": 2, "name": "bob", "op": "U", "seq": 1},
        {"id": 1, "name": "eve", "op": "U", "seq": 3},
        {"id": 1, "name": "old", "op": "U", "seq": 2},
        {"id": 2, "name": None, "op": "D", "seq": 2},
    ]
    (folder / "landing" / "a.json").write_text("".join(json.dumps(event) + "\n" for event in events))
    return spec


OUTSIDE = """
import dlt

@dlt.table
def streamed():
    return spark.readStream.format("delta").load("{lake}/names").select("name")

@dlt.materialized_view
def current():
    return spark.read.format("delta").load("{lake}/people").select("id", "name")

@dlt.materialized_view
def both():
    return spark.read.format("json").schema("id INT").load(["landing/a", "landing/b"])
"""


def outside(folder, lake):
    """Delta tables by their paths, and several paths at once; gives what is in the tables otherwise than expected."""
    for name in ("transformations", "landing/a", "landing/b"):
        (folder / name).mkdir(parents=True)
    spec = folder / "spark-pipeline.yml"
    spec.write_text("name: outside\nstorage: lake\nlibraries: [{glob: {include: transformations/**}}]\n")
    (folder / "transformations" / "tables.py").write_text(OUTSIDE.format(lake=lake))
    for number, name in enumerate("ab"):
        (folder / "landing" / name / "rows.json").write_text(json.dumps({"id": number}) + "\n")
    silverflow("run", "--spec", spec)
    failed = []
    for table, expected in (
        ("streamed", ['{"name":"ANN"}', '{"name":"BOB"}', '{"name":"EVE"}', '{"name":"OLD"}']),
        ("current", ['{"id":1,"name":"EVE"}']),
        ("both", ['{"id":0}', '{"id":1}']),
    ):
        found = silverflow("query", "--spec", spec, f"SELECT * FROM {table}", "--format", "json").split()
        if sorted(found) != expected:
            failed.append(f"{table} of tables outside: {found}")
    return failed


def by_cli(remote, spec):
    """`dry-run` and `run` of the client's command line; gives what went wrong."""
    failed = []
    for command in ("dry-run", "run"):
        done = subprocess.run(
            [sys.executable, "-m", "pyspark.pipelines.cli", command, "--spec", str(spec)],
            env={**os.environ, "SPARK_REMOTE": remote, "PYTHONWARNINGS": "ignore"},
            cwd=spec.parent,
            capture_output=True,
            text=True,
            timeout=300,
        )
        print(f"pyspark.pipelines.cli {command} of {spec.parent.name}: exit code {done.returncode}")
        if done.returncode != 0 or "COMPLETED" not in done.stdout + done.stderr:
            failed.append(f"pyspark.pipelines.cli {command}\n{done.stdout}{done.stderr}")
    return failed


def asked(remote, spec):
    """Two sessions at once ask the tables of a pipeline that they have not declared."""
    failed = []
    with Server("--spec", spec) as other:
        for server in (other.remote, other.remote):
            script = (
                "from pyspark.sql import SparkSession\n"
                f"spark = SparkSession.builder.remote('{server}').getOrCreate()\n"
                "print([tuple(r) for r in spark.read.table('people').collect()], "
                "sorted(r[0] for r in spark.sql('SELECT name FROM names').collect()))\n"
            )
            # A session leaves marks in the environment, which would speak to those that come after it.
            clean = {key: value for key, value in os.environ.items() if not key.startswith("SPARK")}
            asking = spec.parent / "ask.py"
            asking.write_text(script)
            command = [sys.executable, "-W", "ignore", str(asking)]
            done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=120)
            if done.stdout.strip() != "[(1, 'EVE')] ['ANN', 'BOB', 'EVE', 'OLD']":
                failed.append(f"tables asked by a client: {done.stdout}{done.stderr}")
    return failed


def versions(spec):
    """The versions that the client's own AUTO CDC keeps; gives what is otherwise than expected."""
    ask = "SELECT id, name, __START_AT AS a, __END_AT AS b FROM history ORDER BY id, a"
    found = silverflow("query", "--spec", spec, ask, "--format", "json").splitlines()
    expected = [(1, "ANN", 1, 2), (1, "OLD", 2, 3), (1, "EVE", 3, None), (2, "BOB", 1, 2), (2, None, 2, None)]
    found = [tuple(json.loads(row).values()) for row in found]
    return [] if found == expected else [f"versions of the client's own AUTO CDC: {found}"]


def example(scratch):
    """The example in Python and by the client's command line; gives what differs from the one in SQL."""
    failed = []
    expected_spec = project(scratch, "step_right", "step_right")
    silverflow("run", "--spec", expected_spec)
    expected = contents(expected_spec)

    own = project(scratch, "own", "step_right_python")
    silverflow("dry-run", "--spec", own)
    silverflow("run", "--spec", own)
    different = differences(expected, contents(own))
    print(f"silverflow run, in Python: tables that differ from those of SQL: {different}")
    failed += different
    if "nothing new" not in silverflow("run", "--spec", own):
        failed.append("a second run of the same definitions in Python commits something")

    sql = project(scratch, "cli", "step_right")
    with Server("--spec", sql) as server:
        failed += by_cli(server.remote, sql)
    different = differences(expected, contents(sql))
    print(f"the client's command line, in SQL: tables that differ: {different}")
    return failed + different


def main():
    scratch = pathlib.Path(sys.argv[1]).resolve()
    brief = sys.argv[2:] == ["brief"]
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["SILVERFLOW_PYTHON"] = sys.executable
    os.environ.pop("SPARK_REMOTE", None)
    failed = []

    with Server() as server:
        wrong = catalogue(server.remote)
        print(f"catalogue: {len(CASES)} snippets, {len(wrong)} wrong")
        failed += wrong

    if not brief:
        failed += example(scratch)

    with Server() as server:
        spec = native(scratch / "native")
        failed += by_cli(server.remote, spec)
        failed += asked(server.remote, spec)
    if has_history():
        failed += versions(spec)
    failed += outside(scratch / "outside", scratch / "native" / "lake" / "main" / "default")

    print("\n".join(failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
