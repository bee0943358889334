"""The wheel: built, installed into a fresh virtual environment, and used from there alone.

    python wheel.py SCRATCH

The wheel takes the binary of the build that is there already. What it depends on is lent by the environment that runs
this, so that nothing is fetched; `pip check` says whether that is what the wheel asks for.
"""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import venv

from client import Server
from common import ROOT, TARGET

DEFINITIONS = """
import dlt
from pyspark.sql import functions as F

@dlt.expect_or_drop("named", "name IS NOT NULL")
@dlt.table
@dlt.expect_or_quarantine("positive", "id > 0")
def events():
    return spark.readStream.format("json").schema("id INT, name STRING").load("landing")

@dlt.table
def upper():
    return dlt.read_stream("events").select("id", F.upper("name").alias("name"))
"""


def run(*command, cwd=None, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "SILVERFLOW", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)), env={**clean, **environment}, cwd=cwd, capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def project(folder):
    (folder / "transformations").mkdir(parents=True)
    (folder / "landing").mkdir()
    rows = [{"id": 1, "name": "ann"}, {"id": 2, "name": None}, {"id": -3, "name": "bob"}]
    (folder / "landing" / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "transformations" / "d.py").write_text(DEFINITIONS)
    spec = folder / "spark-pipeline.yml"
    spec.write_text("name: wheel\nstorage: lake\nlibraries: [{glob: {include: transformations/**}}]\n")
    return spec


def main():
    scratch = pathlib.Path(sys.argv[1]).resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    binary = TARGET / "silverflow"
    built = binary.stat().st_mtime_ns
    wheels = scratch / "wheels"
    maturin = [sys.executable, "-m", "maturin", "build", "--locked", "--profile", "dev"]
    run(*maturin, "--out", wheels, cwd=ROOT / "python", CARGO_TARGET_DIR=str(TARGET.parent))
    if binary.stat().st_mtime_ns != built:
        sys.exit("the wheel has built the binary again: its profile or features differ from those of the tests")
    (wheel,) = wheels.glob("silverflow-*.whl")

    home = scratch / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    run(python, "-m", "pip", "check")

    command = home / "bin" / "silverflow"
    version = run(command, "--version").strip()
    print(f"{wheel.name}: {version}")
    if not version.startswith("silverflow "):
        sys.exit(f"the installed command says {version}")

    failed = []
    expected = {"upper": [(1, "ANN")], "events_quarantine": [(-3, "bob")]}

    def check(what, spec):
        for table, rows in expected.items():
            said = run(command, "query", "--spec", spec, f"SELECT id, name FROM {table}", "--format", "json",
                       VIRTUAL_ENV=str(home))
            found = [(row["id"], row["name"]) for row in map(json.loads, said.splitlines())]
            if found != rows:
                failed.append(f"{what}: {table} has {found}, not {rows}")

    spec = project(scratch / "own")
    run(command, "run", "--spec", spec, VIRTUAL_ENV=str(home))
    check("silverflow run", spec)

    # The client's command line knows nothing of ours but the module that is installed beside it.
    spec = project(scratch / "cli")
    with Server(binary=command) as server:
        run(python, "-W", "ignore", "-m", "pyspark.pipelines.cli", "run", "--spec", spec, SPARK_REMOTE=server.remote)
    check("pyspark.pipelines.cli", spec)

    print("\n".join(failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
