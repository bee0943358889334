"""All comparisons with what a user would run instead, in one go: medians of several rounds, as ratios.

    python benches/peers/compare.py [--rounds 3] [--orders 250000] [--full]

`--full` adds what has nothing beside it but itself: a late row to five million changes over one to 100,000, the epochs' log
beside bare fsyncs, a restart on five million changes, and the commits of ten tables.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import tempfile

import history
import measured
import step_right


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--orders", type=int, default=250_000)
    arguments.add_argument("--full", action="store_true")
    arguments = arguments.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="silverflow-compared-"))
    rows = []

    def compared(what, ours, theirs, unit):
        ours, theirs = statistics.median(ours), statistics.median(theirs)
        rows.append((what, f"{ours:.3g} {unit}", f"{theirs:.3g} {unit}", f"{ours / theirs:.2f}"))

    try:
        for batches in (1, 10):
            feeds = step_right.make_feeds(work / f"feeds_{batches}", arguments.orders, batches)
            # The first round warms both sides up and does not count.
            rounds = [step_right.measure(work, feeds, os.cpu_count()) for _ in range(arguments.rounds + 1)][1:]
            ours, theirs = zip(*((sum(a), sum(b)) for a, b in rounds))
            compared(f"step_right, {arguments.orders} orders in {batches} batches, DuckDB after each", ours, theirs, "s")
        compared("SCD type 2 of 100,000 changes in 10 batches, Polars and MERGE", *history.feed(work, rounds=arguments.rounds), "s")
        ours, theirs = history.late_row(work), history.merged_row(work)
        compared("a late row to 100,000 changes, DuckDB and MERGE", ours[0], theirs[0], "ms")
        compared("its bytes", ours[1], theirs[1], "KB")
        if arguments.full:
            large = history.late_row(work, rows=5_000_000)
            compared("a late row to 5,000,000 changes, to 100,000", large[0], ours[0], "ms")
            compared("its bytes, likewise", large[1], ours[1], "KB")
            compared("an epoch that commits nothing, its two records alone", *history.overhead(work), "ms")
            alone = [("a restart on 5,000,000 changes with one more", statistics.median(history.restart(work)), "s")]
            alone.append(("commits to ten tables", history.tables(work), "a second"))
            rows.extend((what, f"{value:.3g} {unit}", "", "") for what, value, unit in alone)
        durable = measured.durable(work)
    finally:
        shutil.rmtree(work, ignore_errors=True)

    print(f"\n{os.cpu_count()} cores; a durable file of 1 KB takes {durable:.2f} ms\n")
    print("| what | silverflow | instead | ratio |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
