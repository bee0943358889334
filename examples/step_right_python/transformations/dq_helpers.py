"""What several layers say in the same way: the contract of bronze, and tags for rows that break rules."""

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F


def contract(key: str, has_operation: bool = True) -> tuple[dict[str, str], dict[str, str]]:
    """Rules for a feed: those whose breach waits in quarantine, and those whose breach stops the run.

    A record that cannot be read promises nothing, so that nothing else is asked of it.
    """
    unless_unreadable = "_corrupt_record IS NOT NULL OR "
    waiting = {
        "readable": "_corrupt_record IS NULL",
        "not_from_the_future": unless_unreadable + "updated_at <= current_timestamp()",
    }
    stopping = {
        "has_key": f"{unless_unreadable}{key} IS NOT NULL",
        "has_sequence": unless_unreadable + "updated_at IS NOT NULL",
    }
    if has_operation:
        stopping["known_operation"] = unless_unreadable + "operation IN ('UPSERT', 'DELETE')"
    return waiting, stopping


def tags(rules: dict[str, Column]) -> Column:
    """The names of the rules that a row breaks; none of no rules."""
    names = [F.when(broken, F.lit(name)) for name, broken in rules.items()]
    return F.array_except(F.array(*names), F.array(F.lit(None).cast("string")))


def any_of(*conditions: Column) -> Column:
    """True where one of the conditions is."""
    return reduce(lambda a, b: a | b, conditions)
