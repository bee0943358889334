"""What the checks share: the binary under test, its tables, and how a difference is reported."""

import os
import pathlib
import random
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"


def silverflow(*arguments):
    """Runs the binary and returns what it printed; anything but success ends the check."""
    command = [str(TARGET / "silverflow"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def tables(storage):
    """Every published Delta table under a storage folder, by `<schema>.<table>` below the catalog."""
    storage = pathlib.Path(storage)
    found = {}
    for log in sorted(storage.rglob("_delta_log")):
        name = log.parent.relative_to(storage).parts
        if name[0] != "_silverflow":
            found[".".join(name[1:])] = log.parent
    return found


def arrivals(feeds, batches, seed):
    """For each feed the order in which its batches come: each feed's own, if there is a seed."""
    dice = random.Random(seed)
    order = {feed: list(range(batches)) for feed in sorted(feeds)}
    for batches in order.values() if seed is not None else ():
        dice.shuffle(batches)
    return order


def copy_batch(source, landing, step, order=None):
    """Moves one batch of every feed into the landing folders, as a sender would: the one that is next in its order."""
    for folder in pathlib.Path(source).iterdir():
        target = pathlib.Path(landing) / folder.name
        target.mkdir(parents=True, exist_ok=True)
        batch = order[folder.name][step] if order else step
        for file in folder.glob(f"batch_{batch:03d}.*"):
            shutil.copy(file, target / file.name)


def report(name, missing, surplus):
    """Prints a difference; true if there is none."""
    if not missing and not surplus:
        return True
    print(f"  {name}: {len(missing)} rows missing, {len(surplus)} rows too many")
    for what, rows in (("missing", missing), ("too many", surplus)):
        for row in sorted(rows, key=str)[:5]:
            print(f"    {what}: {row}")
    return False
