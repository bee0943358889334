"""What the measurements share: projects in folders of their own, the binary, and how numbers are told."""

import os
import pathlib
import statistics
import subprocess
import sys
import time

import duckdb

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "silverflow"
sys.path.insert(0, str(ROOT / "tests" / "python"))

SPEC = """name: measured
storage: lakehouse
libraries:
  - glob:
      include: transformations/**
"""

HISTORY = """CREATE OR REFRESH STREAMING TABLE bronze AS SELECT * FROM STREAM read_files('landing/events',
  format => '{format}', schema => 'key BIGINT, seq BIGINT, op STRING, val STRING', maxFilesPerTrigger => {files});

CREATE OR REFRESH STREAMING TABLE history;

CREATE FLOW history_flow AS AUTO CDC INTO history FROM STREAM(bronze)
KEYS (key) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY seq COLUMNS * EXCEPT (op, seq) STORED AS SCD TYPE 2;
"""


class Project:
    """A pipeline in a folder of its own."""

    def __init__(self, folder, definitions):
        self.folder = folder
        (folder / "transformations").mkdir(parents=True)
        (folder / "transformations" / "pipeline.sql").write_text(definitions)
        self.spec = folder / "spark-pipeline.yml"
        self.spec.write_text(SPEC)
        self.tables = folder / "lakehouse" / "main" / "default"

    def land(self, name, query, form="json"):
        """Lands the rows of a query as one file, whole at once; gives the moment at which it was there."""
        target = self.folder / "landing" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        waiting = self.folder / f"waiting.{form}"
        duckdb.sql(f"copy ({query}) to '{waiting}' (format {form})")
        moment = time.perf_counter()
        os.rename(waiting, target)
        return moment

    def run(self, *more):
        """Seconds of a whole run, its process included."""
        start = time.perf_counter()
        subprocess.run([BINARY, "run", "--spec", self.spec, *more], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    def follow(self):
        """A continuous run that prints an object an epoch."""
        command = [BINARY, "run", "--spec", self.spec, "--continuous", "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def history(rows):
    """Changes of rows / 10 keys in random order, one of 33 a delete."""
    return f"""select (hash(i) % {max(rows // 10, 1)})::bigint as key, (2 * i)::bigint as seq,
        case when hash(i, 1) % 33 = 0 then 'D' else 'U' end as op, 'v' || i as val
        from range({rows}) t(i) order by hash(i, 3)"""


def late(rows, number):
    """A change of some key between two others, at a sequence that no other change has."""
    key, at = f"(hash({number}, 4) % {max(rows // 10, 1)})::bigint", (number * 2654435761) % rows
    return f"select {key} as key, {2 * at + 1}::bigint as seq, 'U' as op, 'late {number}' as val"


def cut(events):
    """The versions of events (key, seq, op, val, rank), where of equal sequences the greatest rank counts."""
    return f"""select key, val, seq as start_at, lead(seq) over (partition by key order by seq) as end_at, op
        from (select * from ({events}) qualify row_number() over (partition by key, seq order by rank desc) = 1)"""


def check(con, project, events):
    """Compares the history table with the versions of all events; ends the measurement if they differ."""
    import oracle
    from common import report

    oracle.load_delta(con)
    table = project.tables / "history"
    con.execute(f"create or replace view actual as select key, val, __START_AT as start_at, __END_AT as end_at from delta_scan('{table}')")
    con.execute(f"create or replace view expected as select key, val, start_at, end_at from ({cut(events)}) where op = 'U'")
    if not report("history", *oracle.difference(con, "actual", "expected")):
        sys.exit("the tables differ")


def spread(values, unit):
    ordered = sorted(values)
    return f"{statistics.median(ordered):.3g} {unit} (least {ordered[0]:.3g}, most {ordered[-1]:.3g})"


def durable(folder):
    """Milliseconds that one small durable file costs on this disk: written, fsync, fsync of the folder."""
    times = []
    for number in range(50):
        start = time.perf_counter()
        file = os.open(folder / f"durable_{number}", os.O_CREAT | os.O_WRONLY)
        os.write(file, b"x" * 1000)
        os.fsync(file)
        os.close(file)
        folder_handle = os.open(folder, os.O_RDONLY)
        os.fsync(folder_handle)
        os.close(folder_handle)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)
