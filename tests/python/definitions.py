"""Projects in Python, and what `silverflow dry-run` says of them: each a file of definitions and lines of the answer.

    python definitions.py SCRATCH
"""

import os
import pathlib
import subprocess
import sys
import time

from common import TARGET

SPEC = """name: p
storage: lake
configuration: {{landing: landing, silverflow.python.timeout: "{timeout}", table: configured}}
libraries: [{{glob: {{include: transformations/**}}}}]
"""

HEAD = """import dlt
from pyspark.sql import functions as F
from pyspark.sql.functions import col, expr, when, lit, array, array_except, size

@dlt.table
def events():
    return spark.readStream.format("json").schema("id INT, name STRING, at DATE, op STRING, seq INT").load("landing")
"""

# Name, definitions behind HEAD, exit code, and texts that the answer has; a text with ! before it must not be there.
CASES = [
    ("a table of each kind", """
@dlt.materialized_view(comment="c", table_properties={"a": 1, "b": True})
def all_events():
    return dlt.read("LIVE.events")

@dlt.table(name="batch")
def no_stream():
    return spark.read.table("events").select("id")

@dlt.view
def v():
    return dlt.read_stream("events").where("id > 1")
""", 0, ["events", "all_events", "batch (materialized view)", "v"]),
    ("decorators in any order, and rules that may be empty", """
@dlt.expect("named", "name IS NOT NULL")
@dlt.table
@dlt.expect_all_or_drop({})
@dlt.expect_or_drop("has_id", "id IS NOT NULL")
def judged():
    rules = {}
    tags = array_except(array(*[when(broken, lit(n)) for n, broken in rules.items()]), array(lit(None).cast("string")))
    return dlt.read_stream("events").withColumn("tags", tags).where(size("tags") == 0)
""", 0, ["judged"]),
    ("tables in a loop, from configuration", """
def make(name):
    @dlt.table(name=name)
    def t():
        return dlt.read_stream("events").select("id")

for name in (spark.conf.get("table"), dbutils.widgets.get("table") + "_2"):
    make(name)
print("said by a definition")
""", 0, ["configured", "configured_2", "said by a definition"]),
    ("AUTO CDC with what the client's protocol has no field for", """
dlt.create_streaming_table("history", expect_all_or_fail={"key": "id IS NOT NULL"})
dlt.apply_changes(target="history", source="events", keys=[col("id")], sequence_by=F.struct("seq", "at"),
    apply_as_deletes="op = 'D'", except_column_list=["op"], stored_as_scd_type="2",
    track_history_except_column_list=["at"], ignore_null_updates=True, name="h")
""", 0, ["history", "AUTO CDC"]),
    ("strings beside dates", """
@dlt.table
def late():
    return dlt.read_stream("events").where(col("at") < "2024-01-01").where("at > '2020-01-01'")
""", 0, ["late"]),
    ("arguments without effect are told", """
@dlt.table(partition_cols=["id"], cluster_by=["id"], path="/x", spark_conf={"a": "b"})
def t():
    return dlt.read_stream("events")
""", 0, ["[NO_EFFECT] partition_cols has no effect", "cluster_by has", "path has", "spark_conf has", "transformations/d.py:9"]),
    ("an exception, with the user's line", """
def helper():
    return 1 / 0

@dlt.table
def t():
    return helper()
""", 2, ["PYTHON_DEFINITION_FAILED", "ZeroDivisionError: division by zero", "transformations/d.py:10:5", "return 1 / 0"]),
    ("a syntax error", "def broken(:\n", 2, ["PYTHON_DEFINITION_FAILED", "transformations/d.py:8", "SyntaxError"]),
    ("a package that is not there", "import nothing_of_this_name\n", 2, ["No module named 'nothing_of_this_name'"]),
    ("a function of Python", """
@F.udf("int")
def plus(x):
    return x + 1

@dlt.table
def t():
    return dlt.read_stream("events").select(plus("id"))
""", 2, ["UNSUPPORTED_UDF", "plus", "transformations/d.py:13"]),
    ("rows while definitions load", """
@dlt.table
def t():
    dlt.read("events").count()
    return dlt.read_stream("events")
""", 2, ["ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION", "transformations/d.py:11"]),
    ("columns while definitions load", """
@dlt.table
def t():
    return dlt.read_stream("events").select(dlt.read("events").columns)
""", 2, ["ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"]),
    ("mistakes of several datasets at once", """
dlt.create_streaming_table("a", expect_all={"r": "id >"})
dlt.create_auto_cdc_flow(target="a", source="events", keys=[], sequence_by="seq")
""", 2, ["PARSE_SYNTAX_ERROR", "the expectation r", "AUTOCDC_EMPTY_KEYS", "d.py:9", "d.py:10"]),
    ("a column that is not there", """
@dlt.table
def t():
    rows = dlt.read_stream("events")
    return rows.where(
        col("nmae").isNotNull()
    )
""", 2, ["UNKNOWN_COLUMN", "did you mean name?", "transformations/d.py:13", 'col("nmae").isNotNull()']),
    ("a column of an expectation that is not there", """
@dlt.table
@dlt.expect("r", "nmae IS NOT NULL")
def t():
    return dlt.read_stream("events")
""", 2, ["UNKNOWN_COLUMN", "did you mean name?", "transformations/d.py:9"]),
    ("what is refused by name", """
dlt.create_streaming_table("a")
dlt.create_auto_cdc_flow(target="a", source="events", keys=["id"], sequence_by="seq", columns_to_update="cols")
""", 2, ["NotImplementedError: columns_to_update is not supported yet", "d.py:10"]),
    ("a definition that takes too long", "import time\ntime.sleep(600)\n", 2, ["PYTHON_TIMEOUT"]),
    ("no data frame", """
@dlt.table
def t():
    return 5
""", 2, ["TypeError: the function of t must return a data frame, and returned int"]),
    ("two datasets of one name", """
@dlt.table(name="events")
def t():
    return dlt.read_stream("x")
""", 2, ["PIPELINE_DUPLICATE_IDENTIFIERS", "transformations/d.py:5"]),
    ("utilities that are not there", "key = dbutils.secrets.get('scope', 'key')\n", 2,
        ["NotImplementedError: dbutils.secrets.get is not supported", "os.environ", "transformations/d.py:8"]),
    ("a session of the file's own", """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("mine").getOrCreate()
own = SparkSession.builder.getOrCreate()

@dlt.table
def t():
    return own.readStream.table("events").select("id")
""", 0, ["t"]),
    ("a mistake in an expression of text", """
@dlt.table
def t():
    return (
        dlt.read_stream("events")
        .where(expr("id > 1"))
        .select("id", expr("name ||").alias("n"))
    )
""", 2, ["PARSE_SYNTAX_ERROR", "transformations/d.py:14", 'expr("name ||")', "\n  name ||\n"]),
    ("changes of a session", "spark.conf.set('a', 'b')\n", 2, ["SESSION_MUTATION_IN_DECLARATIVE_PIPELINE"]),
    ("the client's own names", """
from pyspark import pipelines as dp

@dp.expect_or_quarantine("r", "id > 0")
@dp.table
def own():
    return spark.readStream.table("events")

@dp.append_flow(target="own", name="more")
def more():
    return spark.readStream.table("events").where("id < 0")
""", 0, ["own", "own_quarantine"]),
    ("several rows of one, and an order that a table does not keep", """
@dlt.table
def words():
    split = F.explode(F.split("name", " ")).alias("word")
    return dlt.read_stream("events").select("id", split).where("word <> ''").orderBy("word")
""", 0, ["words"]),
    ("verdicts and sequences are remarked as in SQL", """
@dlt.view
def tagged():
    tags = array_except(array(when(col("id") < 0, lit("negative"))), array(lit(None).cast("string")))
    return dlt.read_stream("events").withColumn("tags", tags)

@dlt.view
def clean():
    return dlt.read_stream("tagged").where(size(col("tags")) == 0)

dlt.create_streaming_table("people")
dlt.create_auto_cdc_flow(target="people", source="clean", keys=["id"], sequence_by="at", stored_as_scd_type=2)

@dlt.materialized_view
def late():
    return dlt.read("checked").where("size(tags) = 0")

@dlt.view
def seen():
    return dlt.read_stream("tagged").withColumn("loaded", F.current_timestamp()).withColumnRenamed("loaded", "seq_at")

dlt.create_streaming_table("checked")
dlt.create_auto_cdc_flow(target="checked", source="seen", keys=["id"], sequence_by="seq_at")
""", 0, ["VERDICT_COLUMN_IN_TARGET", "`tags` is filtered on", "EVERY_EVENT_IS_A_VERSION", "VERDICT_FILTER_AFTER_MERGE", "rows of `checked`", "SEQUENCE_LOOKS_LIKE_INGESTION", "`seq_at`, which reads a clock"]),
    ("rows without those that are double in some columns", """
@dlt.table
def t():
    return dlt.read_stream("events").dropDuplicates(["id"])
""", 2, ["NOT_SUPPORTED", "dropDuplicates of some columns", "AUTO CDC", "transformations/d.py:9"]),
    ("aggregates that are not there", """
@dlt.materialized_view
def t():
    return dlt.read("events").groupBy("id").agg(F.collect_list("name").alias("names"))
""", 2, ["NOT_SUPPORTED", "collect_list is an aggregate", "transformations/d.py:11"]),
    ("rows that Python made", """
@dlt.table
def t():
    return spark.createDataFrame([(1,)], "id INT")
""", 2, ["NOT_SUPPORTED", "createDataFrame"]),
]


def dry_run(folder, definitions, timeout=60, **environment):
    """What `dry-run` says of a project with one file of Python."""
    (folder / "transformations").mkdir(parents=True)
    (folder / "landing").mkdir()
    spec = folder / "spark-pipeline.yml"
    spec.write_text(SPEC.format(timeout=timeout))
    (folder / "transformations" / "d.py").write_text(definitions)
    command = [str(TARGET / "silverflow"), "dry-run", "--spec", str(spec)]
    environment = {**os.environ, "SILVERFLOW_PYTHON": sys.executable, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def main():
    scratch = pathlib.Path(sys.argv[1]).resolve()
    failed = []
    for number, (name, definitions, code, texts) in enumerate(CASES):
        timeout = 5 if "too long" in name else 120
        found, said = dry_run(scratch / str(number), HEAD + definitions, timeout)
        missing = [text for text in texts if (text[1:] in said if text[0] == "!" else text not in said)]
        if found != code or missing:
            failed.append(f"{name}: exit code {found}, not said: {missing}\n{said}")
    found, said = dry_run(scratch / "nowhere", HEAD, SILVERFLOW_PYTHON="/no/such/python")
    if found != 3 or "pip install 'pyspark-client>=4.2'" not in said:
        failed.append(f"no Python: exit code {found}\n{said}")

    many = "\n".join(f"@dlt.table\ndef t{n}():\n    return dlt.read_stream('events').withColumn('n', lit({n}))\n" for n in range(100))
    begun = time.monotonic()
    found, said = dry_run(scratch / "many", HEAD + many)
    print(f"a project of 101 tables: {time.monotonic() - begun:.1f} s")
    if found != 0:
        failed.append(said)

    print(f"definitions: {len(CASES)} projects, {len(failed)} answered otherwise")
    print("\n".join(failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
