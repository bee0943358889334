"""A history of changes beside what a user would write by hand: versions cut with DuckDB or Polars and a Delta MERGE.

    python benches/peers/history.py feed [--rows 100000] [--batches 10] [--rounds 3]
    python benches/peers/history.py late-row [--rows 100000] [--updates 40]
    python benches/peers/history.py overhead [--updates 60]
    python benches/peers/history.py restart [--rows 5000000] [--rounds 3]
    python benches/peers/history.py beyond [--rows 5000000] [--batches 20] [--memory 128]
    python benches/peers/history.py tables [--tables 10] [--updates 40]

`feed`: batches of changes, each read and committed for itself, by processes that start with nothing; Polars merges them.
`late-row`: a bronze and an SCD type 2 table hold so many changes; a continuous run waits, and files with one late row are
renamed into the landing folder. Told are the milliseconds from there to the line on standard output that says that the
epoch is complete, and the bytes that the process gave to write calls until the next row: of the first row, which may find
files that are still being compacted, and of all of them. A hand-written MERGE does the same.
`overhead`: epochs of one file whose row is dropped, so that no table is committed: what is left is the epoch's log, its
fsyncs, and the way through the dataflow. Beside it the same files and fsyncs without anything else.
`restart`: seconds of the whole process of a run that follows one with so many rows, for one new row, and the bytes that its
checkpoint writes. `beyond`: so many rows with room for few of them: seconds, anonymous memory at most (what no file backs,
looked at every 5 ms), bytes of state in files, and the same with all the memory there is. `tables`: commits a second, with one
row for each of so many streaming tables at a time.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import duckdb
from measured import BINARY, HISTORY, Project, check, cut, durable, history, late, spread

# The peer is a process too, so that both pay for their start.
POLARS = """
import sys
import polars as pl

table, *batches = sys.argv[1:]
schema = {"key": pl.Int64, "val": pl.String, "start_at": pl.Int64, "end_at": pl.Int64, "op": pl.String}
pl.DataFrame(schema=schema).write_delta(table)
for batch in batches:
    new = pl.read_parquet(batch).select("key", pl.col("seq").alias("start_at"), "op", "val")
    stored = pl.scan_delta(table).join(new.lazy().select("key").unique(), on="key", how="semi").collect()
    events = pl.concat([stored.select("key", "start_at", "op", "val"), new]).unique(["key", "start_at"], keep="last", maintain_order=True)
    versions = events.sort("key", "start_at").with_columns(pl.col("start_at").shift(-1).over("key").alias("end_at"))
    versions = versions.select(list(schema)).join(stored, on=list(schema), how="anti", nulls_equal=True)
    same = {"predicate": "t.key = s.key and t.start_at = s.start_at", "source_alias": "s", "target_alias": "t"}
    versions.write_delta(table, mode="merge", delta_merge_options=same).when_matched_update_all().when_not_matched_insert_all().execute()
"""


def feed(work, rows=100_000, batches=10, rounds=3):
    """Medians of seconds: silverflow's and Polars'."""
    con = duckdb.connect()
    con.execute(f"create table events as {history(rows)}")
    # In order of their sequence, but for one in twenty, which comes in a later batch.
    con.execute(f"""create table arriving as select *, least({batches - 1}, (seq * {batches}) // {2 * rows}
        + case when hash(seq, 5) % 20 = 0 then 1 + hash(seq, 6) % {batches} else 0 end)::int as batch from events""")
    ours, theirs = [], []
    for number in range(rounds):
        project = Project(work / f"feed_{number}", HISTORY.format(format="parquet", files=1))
        files = []
        for batch in range(batches):
            path = project.folder / "landing" / "events" / f"batch_{batch:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            con.execute(f"copy (select * exclude batch from arriving where batch = {batch}) to '{path}'")
            files.append(path)
        ours.append(project.run())
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", POLARS, work / f"polars_{number}", *files], check=True)
        theirs.append(time.perf_counter() - start)
    check(con, project, "select *, 0 as rank from events")
    print(f"{rows} changes in {batches} batches: silverflow {spread(ours, 's')}; Polars and MERGE {spread(theirs, 's')}")
    return ours, theirs


def written(process):
    """Bytes that a process has given to write calls."""
    for line in pathlib.Path(f"/proc/{process.pid}/io").read_text().splitlines():
        if line.startswith("wchar"):
            return int(line.split()[1])


def late_row(work, rows=100_000, updates=40, pause=0.3):
    """Milliseconds and KB of each late row. The first lands while the process starts: nobody is told of it yet, and a file as
    young as that waits half a second for a second look."""
    project = Project(work / f"late_{rows}", HISTORY.format(format="json", files=1000))
    project.land("events/history.json", history(rows))
    print(f"{rows} changes taken in within {project.run():.1f} s")
    process = project.follow()
    times, sizes = [], []
    for number in range(updates):
        before = written(process)
        start = project.land(f"events/late_{number}.json", late(rows, number))
        line = json.loads(process.stdout.readline())
        seconds = time.perf_counter() - start
        time.sleep(pause)
        if "error" in line or line["files"] != 1:
            sys.exit(f"not the epoch of one late row: {line}")
        times.append(seconds * 1000)
        sizes.append((written(process) - before) / 1024)
    process.terminate()
    if process.wait() != 0:
        sys.exit("the continuous run did not end well")
    events = " union all ".join(late(rows, number) for number in range(updates))
    check(duckdb.connect(), project, f"select *, 0 as rank from ({history(rows)}) union all select *, 1 from ({events})")
    tail = sorted(times)[min(len(times) - 1, len(times) * 99 // 100)]
    print(f"silverflow, a late row to {rows} changes: the first, process start included, {times[0]:.3g} ms and {sizes[0]:.3g} KB")
    print(f"  all: {spread(times, 'ms')}, 99 of 100 within {tail:.3g} ms; written {spread(sizes, 'KB')}")
    return times, sizes


DROPPED = """CREATE OR REFRESH STREAMING TABLE t (CONSTRAINT none EXPECT (key < 0) ON VIOLATION DROP ROW)
AS SELECT * FROM STREAM read_files('landing/t', format => 'json', schema => 'key BIGINT');
"""


def records(folder, count=2, size=400):
    """Milliseconds of so many records as the log of epochs makes them: written aside, fsync, a second name, fsync of the folder."""
    start = time.perf_counter()
    for _ in range(count):
        records.number += 1
        aside, name = folder / f"aside_{records.number}", folder / f"record_{records.number}"
        file = os.open(aside, os.O_CREAT | os.O_WRONLY)
        os.write(file, b"x" * size)
        os.fsync(file)
        os.close(file)
        os.link(aside, name)
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        os.unlink(aside)
    return (time.perf_counter() - start) * 1000


records.number = 0


def overhead(work, updates=60, pause=0.05):
    """Milliseconds of epochs that commit nothing, and of their bare records, one after the other."""
    project = Project(work / "overhead", DROPPED)
    project.land("t/first.json", "select 1 as key")
    project.run()
    process = project.follow()
    epochs, bare = [], []
    for number in range(updates):
        start = project.land(f"t/{number}.json", f"select {number} as key")
        line = json.loads(process.stdout.readline())
        epochs.append((time.perf_counter() - start) * 1000)
        if "error" in line or line["files"] != 1 or any(table["committed"] for table in line["tables"]):
            sys.exit(f"not an epoch that commits nothing: {line}")
        time.sleep(pause)
        bare.append(records(work))
    process.terminate()
    if process.wait() != 0:
        sys.exit("the continuous run did not end well")
    print(f"an epoch that commits nothing: {spread(epochs, 'ms')}; its two records alone: {spread(bare, 'ms')}")
    return epochs, bare


def merged_row(work, rows=100_000, updates=20):
    """The same by hand: the versions of the key are read, cut anew and merged."""
    from deltalake import DeltaTable, write_deltalake

    table = work / f"merged_{rows}"
    con = duckdb.connect()
    write_deltalake(table, con.sql(cut(f"select *, 0 as rank from ({history(rows)})")).to_arrow_table())
    times, sizes = [], []
    for number in range(updates):
        before = sum(file.stat().st_size for file in table.rglob("*") if file.is_file())
        start = time.perf_counter()
        stored = DeltaTable(table)
        con.register("stored", stored.to_pyarrow_dataset())
        new = late(rows, number)
        events = f"""select key, start_at as seq, op, val, 0 as rank from stored where key in (select key from ({new}))
            union all select key, seq, op, val, 1 from ({new})"""
        versions = con.sql(f"""select n.* from ({cut(events)}) n left join stored s on n.key = s.key and n.start_at = s.start_at
            where s.key is null or s.end_at is distinct from n.end_at""")
        merge = stored.merge(versions.to_arrow_table(), "t.key = s.key and t.start_at = s.start_at", "s", "t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        times.append((time.perf_counter() - start) * 1000)
        sizes.append((sum(file.stat().st_size for file in table.rglob("*") if file.is_file()) - before) / 1024)
    print(f"MERGE by hand, a late row to {rows} changes: {spread(times, 'ms')}; written {spread(sizes, 'KB')}")
    return times, sizes


def restart(work, rows=5_000_000, rounds=3):
    """Seconds of whole processes that find so many rows and one more."""
    project = Project(work / "restart", HISTORY.format(format="parquet", files=1000))
    project.land("events/history.parquet", history(rows), "parquet")
    print(f"{rows} changes taken in within {project.run():.1f} s")
    checkpoints = project.folder / "lakehouse" / "_silverflow" / "checkpoints"
    sizes = lambda: {file.name: file.stat().st_size for file in checkpoints.iterdir()}
    first = sum(sizes().values())
    times, written = [], []
    for number in range(rounds):
        project.land(f"events/late_{number}.parquet", late(rows, number), "parquet")
        before = sizes()
        times.append(project.run())
        written.append(sum(size for name, size in sizes().items() if name not in before) / 1024)
    print(f"restart on {rows} changes, with one more: {spread(times, 's')}")
    print(f"the first checkpoint {first / 1e6:.1f} MB; those after one change more {spread(written, 'KB')}")
    return times


def watched(project, *more):
    """A run: its report, its seconds, and the most anonymous memory that it had, in MB."""
    command = [BINARY, "run", "--json", "--spec", project.spec, *more]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    most = 0
    while process.poll() is None:
        for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                most = max(most, int(line.split()[1]))
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    report = json.loads(process.stdout.read())
    if process.returncode != 0:
        sys.exit(f"a run ended with {process.returncode}: {report}")
    return report, seconds, most / 1024


def beyond(work, rows=5_000_000, batches=20, memory=128):
    """Anonymous memory at most, in MB, with so many MB and with all there is."""
    con = duckdb.connect()
    con.execute(f"create table events as {history(rows)}")
    peaks = []
    for name, more in (("all the memory", []), (f"--memory {memory}MB", ["--memory", f"{memory}MB"])):
        project = Project(work / name.replace(" ", ""), HISTORY.format(format="parquet", files=1))
        for batch in range(batches):
            path = project.folder / "landing" / "events" / f"batch_{batch:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            con.execute(f"copy (select * from events where rowid % {batches} = {batch}) to '{path}'")
        report, seconds, most = watched(project, *more)
        print(f"{rows} changes, {name}: {seconds:.1f} s, {most:.0f} MB, {report['spilled_bytes'] / 1e6:.0f} MB to files")
        peaks.append(most)
        project.land("events/late.parquet", late(rows, 0), "parquet")
        report, seconds, most = watched(project, *more)
        print(f"  one more: {seconds:.2f} s, {most:.0f} MB")
        check(con, project, f"select *, 0 as rank from events union all select *, 1 from ({late(rows, 0)})")
        shutil.rmtree(project.folder)
    return peaks


def tables(work, count=10, updates=40):
    """Commits a second."""
    read = "SELECT * FROM STREAM read_files('landing/t{0}', format => 'json', schema => 'key BIGINT')"
    definitions = (f"CREATE OR REFRESH STREAMING TABLE t{i} AS {read.format(i)};\n" for i in range(count))
    project = Project(work / "tables", "".join(definitions))
    for i in range(count):
        project.land(f"t{i}/first.json", "select 1 as key")
    project.run()
    process = project.follow()
    start = time.perf_counter()
    for number in range(updates):
        for i in range(count):
            project.land(f"t{i}/{number}.json", f"select {number} as key")
        files = 0
        while files < count:
            files += json.loads(process.stdout.readline())["files"]
    seconds = time.perf_counter() - start
    process.terminate()
    process.wait()
    print(f"{updates * count} commits to {count} tables: {updates * count / seconds:.0f} a second")
    return updates * count / seconds


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("what", choices=["feed", "late-row", "overhead", "restart", "beyond", "tables"])
    for name in ("rows", "batches", "rounds", "updates", "memory", "tables"):
        arguments.add_argument(f"--{name}", type=int)
    arguments = vars(arguments.parse_args())
    what = arguments.pop("what")
    given = {("count" if name == "tables" else name): value for name, value in arguments.items() if value is not None}
    work = pathlib.Path(tempfile.mkdtemp(prefix="silverflow-measured-"))
    try:
        print(f"a durable file of 1 KB on this disk: {durable(work):.2f} ms")
        if what == "late-row":
            late_row(work, **given)
            merged_row(work, **{name: value for name, value in given.items() if name == "rows"})
        else:
            {"feed": feed, "overhead": overhead, "restart": restart, "beyond": beyond, "tables": tables}[what](work, **given)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
