"""Records what Spark reads from the files of tests/cases/files/cases.json as tests/cases/files/spark.json, a line a case.
Needs `pip install pyspark==4.3.0` and Java 17; the tests read the record alone.

    python tests/python/record_files.py
"""

import bz2
import gzip
import json
import pathlib
import tempfile

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

CASES = pathlib.Path(__file__).parent.parent / "cases" / "files"
PACK = {None: lambda x: x, "gzip": gzip.compress, "bzip2": bz2.compress}
AS_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def content(case):
    raw = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode(case.get("encoding", "utf-8"))
    return PACK[case.get("pack")](raw)


def read(spark, case):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / case["file"]).write_bytes(content(case))
        reader = spark.read.format(case["format"]).options(**case.get("options", {}))
        if "schema" in case:
            reader = reader.schema(case["schema"])
        try:
            frame = reader.load(folder)
            # All columns have to be asked for, or malformed records pass.
            rows = frame.selectExpr(f"to_json(struct(*), {options()}) AS row").collect() if frame.columns else []
            found = [json.loads(row.row) for row in rows]
            return {"schema": frame.schema.simpleString(), "rows": found}
        except (PySparkException, Py4JJavaError):
            return {"error": True}


def options():
    quoted = ", ".join("'" + text.replace("'", "\\'") + "'" for pair in AS_JSON.items() for text in pair)
    return f"map({quoted})"


def main():
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = spark.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    cases = json.loads((CASES / "cases.json").read_text())
    lines = [json.dumps(read(spark, case), ensure_ascii=False) for case in cases]
    version = json.dumps({"spark": pyspark.__version__})
    (CASES / "spark.json").write_text("[\n" + ",\n".join([version, *lines]) + "\n]\n")


main()
