"""Tables with thousands of epochs: files, log and the time to read them stay bounded, and four readers agree on the rows.

    python many_epochs.py [--epochs 2000]
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import oracle
import readers
from common import silverflow, tables
from deltalake import DeltaTable

SPEC = "name: many\nstorage: lakehouse\nlibraries:\n  - glob:\n      include: transformations/**\n"
# Old versions may go at once.
KEEP = """TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 seconds',
  'delta.logRetentionDuration' = 'interval 0 seconds')"""
SQL = f"""
CREATE STREAMING TABLE events {KEEP} AS SELECT * FROM STREAM read_files('landing/events', format => 'json',
  schema => 'id BIGINT, s BIGINT', maxFilesPerTrigger => 1);
CREATE STREAMING TABLE history {KEEP};
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(events) KEYS (id) SEQUENCE BY s STORED AS SCD TYPE 2;
"""
KEYS = 50
# Small files and files with vectors at most, as runs keep tables by themselves; and what is left by `optimize`.
RUNNING, ORDERED = 300, 4
SECONDS = 5


def make(folder, epochs):
    """One event an epoch, every tenth one late."""
    (folder / "transformations").mkdir(parents=True)
    (folder / "transformations" / "pipeline.sql").write_text(SQL)
    (folder / "spark-pipeline.yml").write_text(SPEC)
    landing = folder / "landing" / "events"
    landing.mkdir(parents=True)
    for number in range(epochs):
        at = number - 15 * KEYS if number % 10 == 9 else number
        (landing / f"{number:06d}.json").write_text(json.dumps({"id": number % KEYS, "s": 2 * at + (at != number)}) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=2000)
    epochs = arguments.parse_args().epochs
    con = oracle.connect()
    oracle.load_delta(con)
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        make(folder, epochs)
        spec, storage = folder / "spark-pipeline.yml", folder / "lakehouse"
        start = time.monotonic()
        silverflow("run", "--spec", spec)
        print(f"{epochs} epochs in {time.monotonic() - start:.1f} s", flush=True)
        for most in (RUNNING, ORDERED):
            for name, path in tables(storage).items():
                start = time.monotonic()
                table = DeltaTable(str(path))
                rows, files = readers.delta_rs(path).num_rows, len(table.file_uris())
                seconds = time.monotonic() - start
                log = sum(entry.is_file() for entry in (path / "_delta_log").iterdir())
                print(f"{name}: version {table.version()}, {rows} rows, {files} files, {log} of its log, {seconds:.2f} s", flush=True)
                if rows != epochs or table.version() < epochs or files > most or seconds > SECONDS:
                    sys.exit(f"{name}: want {epochs} rows in at most {most} files within {SECONDS} s")
                if most == ORDERED and log > 10:
                    sys.exit(f"{name}: {log} files are left of the log")
            if not readers.alike(con, storage):
                sys.exit("the readers disagree")
            silverflow("optimize", "--vacuum", "--spec", spec)
        silverflow("verify", "--spec", spec)


if __name__ == "__main__":
    main()
