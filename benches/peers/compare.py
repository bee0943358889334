"""All comparisons with what a user would run instead, in one go: medians of several rounds, as ratios.

    python benches/peers/compare.py [--rounds 3] [--orders 250000]
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
        durable = measured.durable(work)
    finally:
        shutil.rmtree(work, ignore_errors=True)

    print(f"\n{os.cpu_count()} cores; a durable file of 1 KB takes {durable:.2f} ms\n")
    print("| what | silverflow | instead | ratio |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
