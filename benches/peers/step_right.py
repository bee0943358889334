"""step_right beside the batch job that a user would run instead: DuckDB over all the feeds, written with delta-rs.

    python benches/peers/step_right.py [--orders 250000] [--batches 1] [--workers 2] [--keep DIR]

Both sides read the same Parquet feeds and end with the same five silver tables in Delta; they are compared row by row.
With several batches, the batch job does everything again after each, silverflow goes on; it stores bronze, too.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from measured import BINARY, ROOT

import oracle
import plain_batches as plain
from common import copy_batch, report, tables


def make_feeds(folder, orders, batches):
    """Parquet feeds of any size, by the generator of the checks."""
    con = oracle.connect()
    plain.Feeds(orders, batches, seed=1).write(folder / "json")
    for feed, columns in plain.FEEDS.items():
        (folder / "parquet" / feed).mkdir(parents=True)
        typed = ", ".join(f"cast({name} as {kind}) as {name}" for name, kind in columns)
        for file in sorted((folder / "json" / feed).glob("*.json")):
            target = folder / "parquet" / feed / f"{file.stem}.parquet"
            schema = ", ".join(f"{name}: 'VARCHAR'" for name, _ in columns)
            con.execute(f"copy (select {typed} from read_json('{file}', columns = {{{schema}}})) to '{target}'")
    shutil.rmtree(folder / "json")
    return folder / "parquet"


def batch_job(feeds, target, upto):
    """The whole pass of DuckDB over the first batches, with the Delta tables written; gives the connection and the seconds."""
    from deltalake import write_deltalake

    shutil.rmtree(target, ignore_errors=True)
    con = oracle.connect()
    start = time.perf_counter()
    for feed in plain.FEEDS:
        files = [str(file) for file in sorted((feeds / feed).glob("*.parquet")) if int(file.stem[-3:]) <= upto]
        con.execute(f"create table {feed} as select distinct * from read_parquet({files})")
    names = []
    for feed, (failures, warnings) in plain.RULES.items():
        key, *values = [name for name, _ in plain.FEEDS[feed]]
        con.execute(
            f"""create table {feed}_tagged as select *, {oracle.tags(failures) if failures else "[]::varchar[]"}
            _dq_critical_failures, {oracle.tags(warnings)} _dq_warnings from {feed}"""
        )
        # Every change is a version here, so that the end of one is simply the start of the next.
        con.execute(
            f"""create table silver_{feed} as select * exclude (_dq_critical_failures), updated_at as __START_AT,
            lead(updated_at) over (partition by {key} order by updated_at) as __END_AT
            from {feed}_tagged where len(_dq_critical_failures) = 0"""
        )
        names.append(f"silver_{feed}")
        if failures:
            con.execute(
                f"""create table silver_{feed}_quarantine as select *, true as _dq_critical_failed
                from {feed}_tagged where len(_dq_critical_failures) > 0"""
            )
            names.append(f"silver_{feed}_quarantine")
    for name in names:
        write_deltalake(str(target / name), con.execute(f"from {name}").to_arrow_table(), mode="overwrite")
    return con, names, time.perf_counter() - start


def measure(work, feeds, workers):
    """Seconds after each batch: silverflow's run, and the batch job over all that has come."""
    batches = len(list((feeds / "orders").glob("*.parquet")))
    project = work / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(ROOT / "tests" / "step_right", project, ignore=shutil.ignore_patterns("landing", "lakehouse"))
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("format: json", "format: parquet"))
    command = [BINARY, "run", "--spec", spec, "--wall", f"{plain.TODAY}T12:00:00Z", "--workers", workers]
    ours, theirs = [], []
    for batch in range(batches):
        copy_batch(feeds, project / "landing", batch)
        start = time.perf_counter()
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        ours.append(time.perf_counter() - start)
        con, names, seconds = batch_job(feeds, work / "duckdb", batch)
        theirs.append(seconds)
        print(f"batch {batch}: silverflow {ours[-1]:.2f} s, DuckDB {seconds:.2f} s")

    oracle.load_delta(con)
    found = tables(project / "lakehouse")
    equal = True
    for name in names:
        con.execute(f"create or replace view actual as from delta_scan('{found['default.' + name]}')")
        con.execute(f"create or replace view expected as from {name}")
        equal &= report(name, *oracle.difference(con, "actual", "expected"))
    if not equal:
        sys.exit("the tables differ")
    return ours, theirs


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--orders", type=int, default=250_000)
    arguments.add_argument("--batches", type=int, default=1)
    arguments.add_argument("--workers", type=int, default=os.cpu_count())
    arguments.add_argument("--keep", type=pathlib.Path)
    arguments = arguments.parse_args()
    work = arguments.keep or pathlib.Path(tempfile.mkdtemp(prefix="silverflow-peers-"))
    work.mkdir(parents=True, exist_ok=True)
    feeds = work / "feeds" / "parquet"
    if not feeds.exists():
        feeds = make_feeds(work / "feeds", arguments.orders, arguments.batches)
    ours, theirs = measure(work, feeds, arguments.workers)
    print(f"silverflow {sum(ours):.2f} s, {sum(ours) / sum(theirs):.2f} times DuckDB's passes")
    if not arguments.keep:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
