"""The names of ``dlt`` and of ``pyspark.pipelines`` as pipelines use them, for silverflow.

A dataset is registered when the file that declares it has been read, so that decorators may stand in any order. What the
protocol has no field for travels as a ``google.protobuf.Struct`` beside the place of a definition.
"""

import os
import sys
from typing import Any, Callable, Dict, List, Optional, Union

import pyspark.sql.connect.proto as pb2
from google.protobuf import any_pb2, struct_pb2
from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.types import pyspark_types_to_proto_types
from pyspark.sql.types import StructType

__all__ = [
    "append_flow",
    "apply_changes",
    "apply_changes_from_snapshot",
    "create_auto_cdc_flow",
    "create_auto_cdc_from_snapshot_flow",
    "create_sink",
    "create_streaming_table",
    "expect",
    "expect_all",
    "expect_all_or_drop",
    "expect_all_or_fail",
    "expect_all_or_quarantine",
    "expect_or_drop",
    "expect_or_fail",
    "expect_or_quarantine",
    "materialized_view",
    "read",
    "read_stream",
    "table",
    "temporary_view",
    "view",
]

_MARK = "__silverflow_expectations__"
_HERE = os.path.abspath(__file__)

# Set while a loader reads files: what is declared waits there until its file has been read.
_waiting: Optional[List[Callable[[], None]]] = None


def _place() -> Any:
    """The line outside of this module that declares something."""
    frame = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename) == _HERE:
        frame = frame.f_back
    if frame is None:
        return pb2.SourceCodeLocation()
    return pb2.SourceCodeLocation(file_name=os.path.abspath(frame.f_code.co_filename), line_number=frame.f_lineno)


def _beside(place: Any, said: Dict[str, Any]) -> Any:
    said = {key: value for key, value in said.items() if value not in (None, False, [])}
    located = pb2.SourceCodeLocation()
    located.CopyFrom(place)
    if said:
        struct = struct_pb2.Struct()
        struct.update(said)
        packed = any_pb2.Any()
        packed.Pack(struct)
        located.extension.append(packed)
    return located


def _later(register: Callable[[], None]) -> None:
    if _waiting is None:
        register()
    else:
        _waiting.append(register)


def _registry() -> Any:
    return get_active_graph_element_registry()


def _send(command: Any) -> None:
    _registry()._client.execute_command(command)


def _texts(argument: str, value: Any) -> List[str]:
    if value is None:
        return []
    if isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{argument} takes a list of texts")
    return list(value)


def _strings(argument: str, value: Optional[Dict[str, Any]]) -> Dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{argument} takes a dictionary")
    plain = lambda one: str(one).lower() if isinstance(one, bool) else str(one)  # noqa: E731
    return {str(key): plain(one) for key, one in value.items()}


class _Dataset:
    """A dataset in the making."""

    def __init__(self, kind: str, name: Optional[str], place: Any, **said: Any) -> None:
        self.kind = kind
        self.name = name
        self.place = place
        self.said = said
        self.expectations: List[Dict[str, str]] = []
        self.function: Optional[Callable[[], Any]] = None
        self.registered = False

    def register(self) -> None:
        self._define(again=False)
        self.registered = True
        if self.function is not None:
            _register_flow(self.name, self.name, self.function, self.place, self.said.get("spark_conf"), False, None)

    def more(self) -> None:
        """Tells what the expectations are after all."""
        self._define(again=True)

    def _define(self, again: bool) -> None:
        said = self.said
        registry = _registry()
        kinds = {
            "table": pb2.OutputType.TABLE,
            "streaming": pb2.OutputType.TABLE,
            "view": pb2.OutputType.TEMPORARY_VIEW,
            "materialized": pb2.OutputType.MATERIALIZED_VIEW,
        }
        details = None
        if self.kind != "view":
            schema = said.get("schema")
            details = pb2.PipelineCommand.DefineOutput.TableDetails(
                table_properties=_strings("table_properties", said.get("table_properties")),
                partition_cols=_texts("partition_cols", said.get("partition_cols")),
                clustering_columns=_texts("cluster_by", said.get("cluster_by")),
                schema_string=schema if isinstance(schema, str) else None,
                schema_data_type=pyspark_types_to_proto_types(schema) if isinstance(schema, StructType) else None,
            )
        beside = {
            "auto": self.kind == "table",
            "private": bool(said.get("private") or said.get("temporary")),
            "expectations": self.expectations,
            "again": again,
            "ignored": said.get("ignored", []),
        }
        command = pb2.Command()
        command.pipeline_command.define_output.CopyFrom(
            pb2.PipelineCommand.DefineOutput(
                dataflow_graph_id=registry._dataflow_graph_id,
                output_name=self.name,
                output_type=kinds[self.kind],
                comment=said.get("comment"),
                table_details=details,
                source_code_location=_beside(self.place, beside),
            )
        )
        _send(command)


def _register_flow(
    name: Optional[str],
    target: Optional[str],
    function: Callable[[], Any],
    place: Any,
    spark_conf: Optional[Dict[str, Any]],
    once: bool,
    comment: Optional[str],
) -> None:
    registry = _registry()
    with add_pipeline_analysis_context(
        spark=registry._spark, dataflow_graph_id=registry._dataflow_graph_id, flow_name=name
    ):
        frame = function()
    if not hasattr(frame, "_plan"):
        raise TypeError(f"the function of {name} must return a data frame, and returned {type(frame).__name__}")
    flow = pb2.PipelineCommand.DefineFlow(
        dataflow_graph_id=registry._dataflow_graph_id,
        flow_name=name,
        target_dataset_name=target,
        relation_flow_details=pb2.PipelineCommand.DefineFlow.WriteRelationFlowDetails(
            relation=frame._plan.plan(registry._client)
        ),
        sql_conf=_strings("spark_conf", spark_conf),
        source_code_location=_beside(place, {"comment": comment}),
    )
    if once:
        flow.once = True
    command = pb2.Command()
    command.pipeline_command.define_flow.CopyFrom(flow)
    _send(command)


def _declared(dataset: _Dataset) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def outer(function: Callable[[], Any]) -> Callable[[], Any]:
        if not callable(function):
            raise TypeError("a dataset decorates the function of its query")
        dataset.name = dataset.name or function.__name__
        dataset.function = function
        # Expectations that stand below are there already; those above come while this waits.
        marked = function.__dict__.setdefault(_MARK, [])
        dataset.expectations = marked
        function.__dict__["__silverflow_dataset__"] = dataset
        _later(dataset.register)
        return function

    return outer


def _dataset(kind: str, function: Optional[Callable[[], Any]], name: Optional[str], said: Dict[str, Any]) -> Any:
    if name is not None and not isinstance(name, str):
        raise TypeError("name takes a text")
    decorate = _declared(_Dataset(kind, name, _place(), **said))
    return decorate if function is None else decorate(function)


def _ignored(**arguments: Any) -> List[str]:
    return [name for name, value in arguments.items() if value not in (None, False)]


def table(
    query_function: Optional[Callable[[], Any]] = None,
    *,
    name: Optional[str] = None,
    comment: Optional[str] = None,
    spark_conf: Optional[Dict[str, str]] = None,
    table_properties: Optional[Dict[str, str]] = None,
    path: Optional[str] = None,
    partition_cols: Optional[List[str]] = None,
    cluster_by_auto: bool = False,
    cluster_by: Optional[List[str]] = None,
    schema: Optional[Union[StructType, str]] = None,
    temporary: bool = False,
    row_filter: Optional[str] = None,
    private: bool = False,
    format: Optional[str] = None,
) -> Any:
    """A streaming table, or a materialized view where the query reads no stream."""
    _no("row_filter", row_filter)
    _delta(format)
    said = dict(
        comment=comment,
        spark_conf=spark_conf,
        table_properties=table_properties,
        partition_cols=partition_cols,
        cluster_by=cluster_by,
        schema=schema,
        private=private,
        temporary=temporary,
        ignored=_ignored(path=path, cluster_by_auto=cluster_by_auto),
    )
    return _dataset("table", query_function, name, said)


def materialized_view(
    query_function: Optional[Callable[[], Any]] = None,
    *,
    name: Optional[str] = None,
    comment: Optional[str] = None,
    spark_conf: Optional[Dict[str, str]] = None,
    table_properties: Optional[Dict[str, str]] = None,
    path: Optional[str] = None,
    partition_cols: Optional[List[str]] = None,
    cluster_by_auto: bool = False,
    cluster_by: Optional[List[str]] = None,
    schema: Optional[Union[StructType, str]] = None,
    row_filter: Optional[str] = None,
    private: bool = False,
    refresh_policy: Optional[str] = None,
    format: Optional[str] = None,
) -> Any:
    """A table that is always equal to its query."""
    _no("row_filter", row_filter)
    _delta(format)
    said = dict(
        comment=comment,
        spark_conf=spark_conf,
        table_properties=table_properties,
        partition_cols=partition_cols,
        cluster_by=cluster_by,
        schema=schema,
        private=private,
        ignored=_ignored(path=path, cluster_by_auto=cluster_by_auto, refresh_policy=refresh_policy),
    )
    return _dataset("materialized", query_function, name, said)


def temporary_view(
    query_function: Optional[Callable[[], Any]] = None,
    *,
    name: Optional[str] = None,
    comment: Optional[str] = None,
    spark_conf: Optional[Dict[str, str]] = None,
) -> Any:
    """A named query, which is not stored."""
    return _dataset("view", query_function, name, dict(comment=comment, spark_conf=spark_conf))


view = temporary_view


def create_streaming_table(
    name: str,
    comment: Optional[str] = None,
    spark_conf: Optional[Dict[str, str]] = None,
    table_properties: Optional[Dict[str, str]] = None,
    path: Optional[str] = None,
    partition_cols: Optional[List[str]] = None,
    cluster_by_auto: bool = False,
    cluster_by: Optional[List[str]] = None,
    schema: Optional[Union[StructType, str]] = None,
    expect_all: Optional[Dict[str, str]] = None,
    expect_all_or_drop: Optional[Dict[str, str]] = None,
    expect_all_or_fail: Optional[Dict[str, str]] = None,
    expect_all_or_quarantine: Optional[Dict[str, str]] = None,
    row_filter: Optional[str] = None,
    format: Optional[str] = None,
) -> None:
    """A streaming table that flows feed."""
    _no("row_filter", row_filter)
    _delta(format)
    said = dict(
        comment=comment,
        table_properties=table_properties,
        partition_cols=partition_cols,
        cluster_by=cluster_by,
        schema=schema,
        ignored=_ignored(path=path, cluster_by_auto=cluster_by_auto, spark_conf=spark_conf),
    )
    dataset = _Dataset("streaming", name, _place(), **said)
    for action, rules in (
        ("warn", expect_all),
        ("drop", expect_all_or_drop),
        ("fail", expect_all_or_fail),
        ("quarantine", expect_all_or_quarantine),
    ):
        dataset.expectations.extend(_rules(rules or {}, action))
    _later(dataset.register)


def create_streaming_live_table(*arguments: Any, **named: Any) -> None:
    """The older name of :func:`create_streaming_table`."""
    create_streaming_table(*arguments, **named)


def append_flow(
    *,
    target: str,
    name: Optional[str] = None,
    once: bool = False,
    spark_conf: Optional[Dict[str, str]] = None,
    comment: Optional[str] = None,
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Appends the rows of a query to a streaming table."""
    place = _place()

    def outer(function: Callable[[], Any]) -> Callable[[], Any]:
        title = name or function.__name__
        _later(lambda: _register_flow(title, target, function, place, spark_conf, once, comment))
        return function

    return outer


def _column(argument: str, value: Any) -> Column:
    if isinstance(value, Column):
        return value
    if isinstance(value, str):
        return F.expr(value)
    raise TypeError(f"{argument} takes a column or a text, not {type(value).__name__}")


def _named(argument: str, value: Any) -> List[Column]:
    if value is None:
        return []
    if isinstance(value, str):
        raise TypeError(f"{argument} takes a list")
    return [F.col(one) if isinstance(one, str) else _column(argument, one) for one in value]


def _names(argument: str, value: Any) -> Optional[List[str]]:
    if value is None:
        return None
    names = []
    for one in _named(argument, value):
        plan = one.to_plan(_registry()._client)  # type: ignore[attr-defined]
        names.append(plan.unresolved_attribute.unparsed_identifier.strip("`"))
    return names


def create_auto_cdc_flow(
    target: str,
    source: str,
    keys: Any,
    sequence_by: Any,
    system_sequence_by: Any = None,
    ignore_null_updates: bool = False,
    ignore_null_updates_column_list: Any = None,
    ignore_null_updates_except_column_list: Any = None,
    columns_to_update: Optional[str] = None,
    apply_as_deletes: Any = None,
    apply_as_truncates: Any = None,
    column_list: Any = None,
    except_column_list: Any = None,
    stored_as_scd_type: Any = "1",
    track_history_column_list: Any = None,
    track_history_except_column_list: Any = None,
    name: Optional[str] = None,
    once: bool = False,
    flow_name: Optional[str] = None,
) -> None:
    """Merges change events into a streaming table by key and sequence."""
    _no("system_sequence_by", system_sequence_by)
    _no("columns_to_update", columns_to_update)
    place = _place()
    title = name or flow_name

    def register() -> None:
        registry = _registry()
        plan = lambda column: column.to_plan(registry._client)  # noqa: E731
        plans = lambda argument, value: [plan(one) for one in _named(argument, value)]  # noqa: E731
        details = pb2.PipelineCommand.DefineFlow.AutoCdcFlowDetails(
            source=source,
            keys=plans("keys", keys),
            sequence_by=plan(_column("sequence_by", sequence_by)),
            column_list=plans("column_list", column_list),
            except_column_list=plans("except_column_list", except_column_list),
            ignore_null_updates_column_list=plans("ignore_null_updates_column_list", ignore_null_updates_column_list),
            ignore_null_updates_except_column_list=plans(
                "ignore_null_updates_except_column_list", ignore_null_updates_except_column_list
            ),
        )
        if apply_as_deletes is not None:
            details.apply_as_deletes.CopyFrom(plan(_column("apply_as_deletes", apply_as_deletes)))
        if apply_as_truncates is not None:
            details.apply_as_truncates.CopyFrom(plan(_column("apply_as_truncates", apply_as_truncates)))
        history = _names("track_history_column_list", track_history_column_list)
        other = _names("track_history_except_column_list", track_history_except_column_list)
        beside: Dict[str, Any] = {
            "stored_as_scd_type": str(stored_as_scd_type),
            "ignore_null_updates": bool(ignore_null_updates),
        }
        located = _beside(place, beside)
        struct = struct_pb2.Struct()
        located.extension[0].Unpack(struct)
        # A list that names nothing says something, too.
        for key, value in (("track_history_column_list", history), ("track_history_except_column_list", other)):
            if value is not None:
                struct.update({key: value})
        located.extension[0].Pack(struct)
        flow = pb2.PipelineCommand.DefineFlow(
            dataflow_graph_id=registry._dataflow_graph_id,
            flow_name=title,
            target_dataset_name=target,
            auto_cdc_flow_details=details,
            source_code_location=located,
        )
        if once:
            flow.once = True
        command = pb2.Command()
        command.pipeline_command.define_flow.CopyFrom(flow)
        _send(command)

    _later(register)


apply_changes = create_auto_cdc_flow


def create_auto_cdc_from_snapshot_flow(*_: Any, **__: Any) -> None:
    """Not supported yet."""
    raise NotImplementedError("AUTO CDC from snapshots is not supported yet")


apply_changes_from_snapshot = create_auto_cdc_from_snapshot_flow


def create_sink(*_: Any, **__: Any) -> None:
    """Not supported yet."""
    raise NotImplementedError("sinks are not supported yet; tables are what a pipeline gives")


def _rules(rules: Dict[str, Any], action: str) -> List[Dict[str, str]]:
    if not isinstance(rules, dict):
        raise TypeError("expectations are a dictionary of names and conditions")
    return [_rule(name, condition, action) for name, condition in rules.items()]


def _rule(name: Any, condition: Any, action: str) -> Dict[str, str]:
    if not isinstance(name, str) or not isinstance(condition, str):
        raise TypeError("an expectation has a name and a condition in SQL, both texts")
    return {"name": name, "condition": condition, "action": action}


def _expecting(rules: List[Dict[str, str]]) -> Callable[[Any], Any]:
    def outer(function: Any) -> Any:
        if not callable(function):
            raise TypeError("an expectation decorates the function of a dataset")
        dataset = function.__dict__.get("__silverflow_dataset__")
        # Decorators come from the bottom up; rules are told as they are written.
        marked = function.__dict__.setdefault(_MARK, [])
        marked[:0] = rules
        if dataset is not None and dataset.registered:
            dataset.more()
        return function

    return outer


def expect(name: str, condition: str) -> Callable[[Any], Any]:
    """Rows that violate the condition are kept and counted."""
    return _expecting([_rule(name, condition, "warn")])


def expect_or_drop(name: str, condition: str) -> Callable[[Any], Any]:
    """Rows that violate the condition are left out and counted."""
    return _expecting([_rule(name, condition, "drop")])


def expect_or_fail(name: str, condition: str) -> Callable[[Any], Any]:
    """Nothing is committed while a row violates the condition."""
    return _expecting([_rule(name, condition, "fail")])


def expect_or_quarantine(name: str, condition: str) -> Callable[[Any], Any]:
    """Rows that violate the condition are in the table's quarantine as long as they do."""
    return _expecting([_rule(name, condition, "quarantine")])


def expect_all(expectations: Dict[str, str]) -> Callable[[Any], Any]:
    """:func:`expect` for each."""
    return _expecting(_rules(expectations, "warn"))


def expect_all_or_drop(expectations: Dict[str, str]) -> Callable[[Any], Any]:
    """:func:`expect_or_drop` for each."""
    return _expecting(_rules(expectations, "drop"))


def expect_all_or_fail(expectations: Dict[str, str]) -> Callable[[Any], Any]:
    """:func:`expect_or_fail` for each."""
    return _expecting(_rules(expectations, "fail"))


def expect_all_or_quarantine(expectations: Dict[str, str]) -> Callable[[Any], Any]:
    """:func:`expect_or_quarantine` for each."""
    return _expecting(_rules(expectations, "quarantine"))


def _plain(name: str) -> str:
    return name[5:] if name[:5].upper() == "LIVE." else name


def read(name: str) -> Any:
    """The rows of a dataset, whatever they are now."""
    return _session().read.table(_plain(name))


def read_stream(name: str) -> Any:
    """The rows of a dataset as a stream."""
    return _session().readStream.table(_plain(name))


def _session() -> Any:
    session = SparkSession.getActiveSession() or getattr(_registry(), "_spark", None)
    if session is None:
        raise RuntimeError("there is no session")
    return session


def _no(argument: str, value: Any) -> None:
    if value is not None:
        raise NotImplementedError(f"{argument} is not supported yet")


def _delta(format: Optional[str]) -> None:
    if format is not None and format.lower() != "delta":
        raise NotImplementedError(f"tables are Delta tables; the format {format} is not supported")
