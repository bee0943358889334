"""The example at 12,000 orders equals DuckDB after every batch, deletes, repeats and broken lines included; and after all
those commits, with their deletion vectors, three readers still agree on every table.

    python example_batches.py [--orders N] [--batches B] [--seed S] [--workers W] [--permute SEED]
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

import oracle
import readers
from common import ROOT, TARGET, arrivals, copy_batch, report, silverflow, tables

WALL = "2025-12-31 00:00:00+00"
FEEDS = {
    "customers": [
        ("customer_id", "varchar"), ("first_name", "varchar"), ("last_name", "varchar"), ("email", "varchar"),
        ("region", "varchar"), ("signup_date", "date"), ("operation", "varchar"), ("updated_at", "timestamptz"),
    ],
    "products": [
        ("product_id", "varchar"), ("product_name", "varchar"), ("category", "varchar"),
        ("list_price", "decimal(10, 2)"), ("launch_date", "date"), ("updated_at", "timestamptz"),
    ],
    "orders": [
        ("order_id", "varchar"), ("customer_id", "varchar"), ("order_date", "date"), ("status", "varchar"),
        ("operation", "varchar"), ("updated_at", "timestamptz"),
    ],
    "order_items": [
        ("order_item_id", "varchar"), ("order_id", "varchar"), ("product_id", "varchar"), ("quantity", "integer"),
        ("unit_price", "decimal(10, 2)"), ("discount_pct", "decimal(5, 1)"), ("operation", "varchar"),
        ("updated_at", "timestamptz"),
    ],
}
CUSTOMER_WARNINGS = [
    ("missing_region", "region is null"),
    ("invalid_region", f"region not in {oracle.REGIONS}"),
]
ORDER_FAILURES = [("customer_not_resolved", "operation <> 'DELETE' and customer_id not in (select customer_id from customers)")]
ORDER_WARNINGS = [
    ("missing_order_date", "operation <> 'DELETE' and order_date is null"),
    ("unknown_status", f"status not in {oracle.STATUSES}"),
    ("future_order_date", f"order_date > date '{WALL[:10]}'"),
]
ITEM_FAILURES = [
    ("invalid_discount_pct", "discount_pct < 0 or discount_pct > 100"),
    ("product_not_resolved", "operation <> 'DELETE' and product_id not in (select product_id from products)"),
]
ITEM_WARNINGS = [
    ("missing_quantity", "operation <> 'DELETE' and quantity is null"),
    ("order_not_resolved", "operation <> 'DELETE' and order_id not in (select order_id from orders)"),
    ("negative_net_price", "unit_price * (1 - discount_pct / 100) < 0"),
    ("excessive_quantity", "quantity > 10"),
]


def names(feed):
    return [name for name, _ in FEEDS[feed] if name not in ("operation", "updated_at")]


def expect(con, landing):
    """Builds every silver and quarantine table from what has landed; returns their names."""
    for feed, columns in FEEDS.items():
        oracle.feed(con, feed, landing / feed, columns, WALL)
    gone = "operation = 'DELETE'"
    con.execute(f"create or replace table customers_tagged as select *, {oracle.tags(CUSTOMER_WARNINGS)} _dq_warnings from customers")
    key, *values = names("customers")
    oracle.history(con, "silver_customers", "customers_tagged", key, values, ["_dq_warnings"], gone)
    key, *values = names("products")
    oracle.history(con, "silver_products", "products", key, values)
    built = ["silver_customers", "silver_products"]
    for feed, failures, warnings in (("orders", ORDER_FAILURES, ORDER_WARNINGS), ("order_items", ITEM_FAILURES, ITEM_WARNINGS)):
        con.execute(
            f"""create or replace table {feed}_tagged as select *, {oracle.tags(failures)} _dq_critical_failures,
            {oracle.tags(warnings)} _dq_warnings from {feed}"""
        )
        con.execute(f"create or replace view {feed}_clean as from {feed}_tagged where len(_dq_critical_failures) = 0")
        con.execute(
            f"create or replace table silver_{feed}_quarantine as from {feed}_tagged where len(_dq_critical_failures) > 0"
        )
        key, *values = names(feed)
        oracle.history(con, f"silver_{feed}", f"{feed}_clean", key, values, ["_dq_warnings"], gone)
        built += [f"silver_{feed}", f"silver_{feed}_quarantine"]
    return built


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--orders", type=int, default=12_000)
    arguments.add_argument("--batches", type=int, default=10)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--permute", type=int, help="each feed's batches come in an order of their own")
    arguments = arguments.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="silverflow-example-"))
    project, feeds = work / "project", work / "feeds"
    shutil.copytree(ROOT / "examples" / "step_right", project, ignore=shutil.ignore_patterns("landing", "lakehouse"))
    generator = TARGET / "examples" / "step_right_data"
    size = ["--orders", str(arguments.orders), "--batches", str(arguments.batches), "--seed", str(arguments.seed)]
    subprocess.run([generator, feeds, *size], check=True)

    con = oracle.connect()
    oracle.load_delta(con)
    equal, released = True, 0
    order = arrivals(FEEDS, arguments.batches, arguments.permute)
    for batch in range(arguments.batches):
        copy_batch(feeds, project / "landing", batch, order)
        before = {row[0] for row in con.execute("select order_id || updated_at from silver_orders_quarantine").fetchall()} if batch else set()
        wall = WALL.replace(" ", "T").replace("+00", "Z")
        silverflow("run", "--spec", project / "spark-pipeline.yml", "--wall", wall, "--workers", arguments.workers)
        found = tables(project / "lakehouse")
        counts = []
        for name in expect(con, project / "landing"):
            con.execute(f"create or replace view actual as from delta_scan('{found['step_right.' + name]}')")
            equal &= report(f"batch {batch} {name}", *oracle.difference(con, "actual", name))
            counts.append(f"{name} {con.execute(f'select count(*) from {name}').fetchone()[0]}")
        after = {row[0] for row in con.execute("select order_id || updated_at from silver_orders_quarantine").fetchall()}
        released += len(before - after)
        print(f"batch {batch}: " + ", ".join(counts), flush=True)
    print(f"changes of orders released from quarantine by late customers: {released}")
    if released == 0:
        sys.exit("no change was ever released, so the check shows nothing about late references")
    if not equal:
        sys.exit(f"the tables differ from DuckDB's; they are kept in {work}")
    if not list((project / "lakehouse").rglob("deletion_vector_*.bin")):
        sys.exit("no table has a deletion vector, so the readers show nothing about them")
    if not readers.alike(con, project / "lakehouse"):
        sys.exit(f"the readers disagree; the tables are kept in {work}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
