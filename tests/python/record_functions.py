"""Records what Spark answers to the expressions of tests/cases/expressions.txt, in both ANSI modes, as
tests/cases/functions.json. Needs `pip install pyspark==4.3.0` and Java 17; the tests read the record alone.

    python tests/python/record_functions.py [FUNCTION …]

With names of functions only their cases are recorded anew; what is no longer asked for goes.
"""

import datetime
import decimal
import json
import logging
import math
import pathlib
import re
import sys

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, types

CASES = pathlib.Path(__file__).parent.parent / "cases"
HOLE = re.compile(r"\{([A-Z][^{}]*)\}")
# Literals that are of the hole's type as they stand.
PLAIN = {"STRING", "INT", "BOOLEAN"}


def expressions(text):
    """(family, function, expression, rows of arguments) in the file's order."""
    family = None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            family = line.strip()[1:-1]
        elif line.startswith("  "):
            found[-1][3].extend([v.strip() for v in row.split(" ; ")] for row in line.strip().split(" | "))
        else:
            name, expression = line.split(": ", 1)
            found.append((family, name, expression, []))
    for family, name, expression, rows in found:
        holes = HOLE.findall(expression)
        if not holes and not rows:
            rows.append([])
        for row in rows:
            assert len(row) == len(holes), f"{name}: {expression} takes {len(holes)} arguments, not {row}"
    return found


def literal(value, kind):
    """An argument as SQL of the hole's type."""
    if value == "NULL" or kind not in PLAIN and not value.startswith(("array(", "map(", "named_struct(")):
        return f"CAST({value} AS {kind})"
    if kind.startswith(("ARRAY", "MAP", "STRUCT")):
        return f"CAST({value} AS {kind})"
    return value


def filled(expression, row):
    values = iter(row)
    return HOLE.sub(lambda hole: literal(next(values), hole[1]), expression)


def encoded(value, kind):
    """A value as JSON; what JSON has no form for is text."""
    if value is None:
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y").rjust(4, "0") + value.strftime("-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(kind, types.ArrayType):
        return [encoded(v, kind.elementType) for v in value]
    if isinstance(kind, types.MapType):
        return [[encoded(k, kind.keyType), encoded(v, kind.valueType)] for k, v in value.items()]
    if isinstance(kind, types.StructType):
        return {f.name: encoded(v, f.dataType) for f, v in zip(kind.fields, value)}
    return str(value)


def asked(spark, expressions):
    """One answer an expression: its type and value, or its error."""
    try:
        frame = spark.sql("SELECT " + ", ".join(f"{e} AS c{i}" for i, e in enumerate(expressions)))
        row = frame.collect()[0]
        return [(f.dataType.simpleString(), {"value": encoded(v, f.dataType)}) for f, v in zip(frame.schema, row)]
    except PySparkException as error:
        if len(expressions) > 1:
            return [asked(spark, [e])[0] for e in expressions]
        return [(None, {"error": error.getCondition() or type(error).__name__})]
    except (ValueError, OverflowError) as error:
        if len(expressions) > 1:
            return [asked(spark, [e])[0] for e in expressions]
        print(f"left out, Python has no value for the answer: {expressions[0]}: {error}", file=sys.stderr)
        return [(None, None)]
    except Exception as error:
        if len(expressions) > 1:
            return [asked(spark, [e])[0] for e in expressions]
        print(f"not recorded: {expressions[0]}: {str(error).splitlines()[0]}", file=sys.stderr)
        return [(None, {"error": "OTHER"})]


def main():
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    logging.disable(logging.CRITICAL)
    wanted = set(sys.argv[1:])
    known = {}
    if wanted:
        known = {group["expression"]: group for group in json.loads((CASES / "functions.json").read_text())["groups"]}
    groups = []
    for family, name, expression, rows in expressions((CASES / "expressions.txt").read_text()):
        if name not in wanted and expression in known:
            groups.append(known[expression])
            continue
        sql = [filled(expression, row) for row in rows]
        modes = {}
        for mode in ("ansi", "legacy"):
            spark.conf.set("spark.sql.ansi.enabled", str(mode == "ansi").lower())
            modes[mode] = asked(spark, sql)
        kinds = {mode: sorted({kind for kind, _ in answers if kind}) for mode, answers in modes.items()}
        cases = []
        for row, ansi, legacy in zip(rows, modes["ansi"], modes["legacy"]):
            if ansi[1] is None or legacy[1] is None:
                continue
            case = {"arguments": row, **ansi[1]}
            if legacy[1] != ansi[1]:
                case["legacy"] = legacy[1]
            cases.append(case)
        group = {"family": family, "function": name, "expression": expression}
        group["type"] = kinds["ansi"][0] if kinds["ansi"] else None
        if kinds["legacy"] and kinds["legacy"] != kinds["ansi"]:
            group["legacy_type"] = kinds["legacy"][0]
        if max(map(len, kinds.values())) > 1:
            print(f"more than one type: {expression}: {kinds}", file=sys.stderr)
        groups.append(group | {"cases": cases})
    lines = []
    for group in groups:
        head = json.dumps({k: v for k, v in group.items() if k != "cases"}, ensure_ascii=False)
        cases = ",\n".join("    " + json.dumps(case, ensure_ascii=False) for case in group["cases"])
        lines.append(f'  {head[:-1]}, "cases": [\n{cases}\n  ]}}')
    text = f'{{"spark": "{pyspark.__version__}", "groups": [\n' + ",\n".join(lines) + "\n]}\n"
    (CASES / "functions.json").write_text(text)


main()
