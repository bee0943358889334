"""Reads the definitions of a project in Python and declares them to the server that started this process.

Called with two paths: what to load, as JSON, and where to put what came of it.
"""

import importlib.util
import json
import os
import sys
import traceback
from typing import Any, Dict


class _Widgets:
    """``dbutils.widgets``, answered from the project's configuration."""

    def __init__(self, configuration: Dict[str, str]) -> None:
        self._values = dict(configuration)

    def get(self, name: str) -> str:
        if name not in self._values:
            raise KeyError(f"no widget is called {name}; set it under `configuration` in the project file")
        return self._values[name]

    def getAll(self) -> Dict[str, str]:  # noqa: N802
        return dict(self._values)

    def text(self, name: str, defaultValue: str = "", label: str = "") -> None:  # noqa: N803
        self._values.setdefault(name, defaultValue)

    def dropdown(self, name: str, defaultValue: str, choices: Any = None, label: str = "") -> None:  # noqa: N803
        self._values.setdefault(name, defaultValue)


class _Absent:
    """A part of ``dbutils`` that is refused by name, whatever is asked of it."""

    def __init__(self, part: str, instead: str) -> None:
        self._part = part
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"{self._part}.{name} is not supported; {self._instead}")


class _Utilities:
    def __init__(self, configuration: Dict[str, str]) -> None:
        self.widgets = _Widgets(configuration)
        self.secrets = _Absent("dbutils.secrets", "set an environment variable, and read it with os.environ")
        self.fs = _Absent("dbutils.fs", "use Python's own os, pathlib and shutil")
        self.notebook = _Absent("dbutils.notebook", "import the module instead")
        self.jobs = _Absent("dbutils.jobs", "set values under `configuration` in the project file")


def _told(error: BaseException, root: str) -> Dict[str, Any]:
    """An exception with the user's own line: the last one in a file of the project."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename[:1] != "<" and os.path.abspath(f.filename).startswith(root + os.sep)]
    told: Dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, SyntaxError) and error.filename:
        told.update(file=os.path.abspath(error.filename), line=error.lineno or 0, message=error.msg)
    elif own:
        told.update(file=os.path.abspath(own[-1].filename), line=own[-1].lineno)
    told["trace"] = [f"{f.filename}:{f.lineno} in {f.name}" for f in own[:-1]]
    return told


def _load(job: Dict[str, Any]) -> Dict[str, Any]:
    try:
        from pyspark.pipelines.block_session_mutations import block_session_mutations
        from pyspark.pipelines.graph_element_registry import graph_element_registration_context
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph
        from pyspark.sql import SparkSession
    except ImportError as error:
        return {"missing": str(error)}
    # Names the definitions may use, and no other process sees.
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules"))
    import builtins

    import dlt
    import pyspark.pipelines

    for name in dlt.__all__:
        setattr(pyspark.pipelines, name, getattr(dlt, name))

    root = job["root"]
    # Where a definition makes a session of its own, it is this one.
    os.environ["SPARK_REMOTE"] = job["remote"]
    builder = SparkSession.builder.remote(job["remote"])
    for key, value in job["configuration"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    builtins.spark = spark  # type: ignore[attr-defined]
    builtins.dbutils = _Utilities(job["configuration"])  # type: ignore[attr-defined]
    os.chdir(root)
    graph = create_dataflow_graph(spark, job["catalog"], job["schema"], job["configuration"])
    registry = SparkConnectGraphElementRegistry(spark, graph)
    sys.path.insert(1, root)
    with graph_element_registration_context(registry), block_session_mutations():
        for number, file in enumerate(job["files"]):
            folder = os.path.dirname(file)
            if folder not in sys.path:
                sys.path.insert(1, folder)
            dlt._waiting = []
            try:
                # A file is a module of its own; one that another file imports is run a second time under its own name.
                spec = importlib.util.spec_from_file_location(f"__definitions_{number}__", file)
                module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
                module.__dict__["spark"] = spark
                spec.loader.exec_module(module)  # type: ignore[union-attr]
                while dlt._waiting:
                    dlt._waiting.pop(0)()
            except Exception as error:  # noqa: BLE001
                return {"error": _told(error, root)}
    return {"graph": graph}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    result = _load(job)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file)
    sys.stdout.flush()
    # The session is the server's to end, and its threads are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
