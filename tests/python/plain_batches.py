"""step_right without contract and deletes at 12,000 orders: equal to one DuckDB pass after every batch.

    python plain_batches.py [--orders N] [--batches B] [--seed S] [--workers W] [--permute SEED] [--feeds DIR]

With --feeds the feeds are taken from DIR/<feed>/batch_<k>.json instead of being made.
"""

import argparse
import datetime
import json
import pathlib
import random
import shutil
import sys
import tempfile

import oracle
from common import ROOT, arrivals, copy_batch, report, silverflow, tables

TODAY = "2026-06-30"
START = datetime.datetime(2026, 1, 1)
FEEDS = {
    "customers": [
        ("customer_id", "varchar"), ("first_name", "varchar"), ("last_name", "varchar"), ("email", "varchar"),
        ("region", "varchar"), ("signup_date", "varchar"), ("updated_at", "timestamp"),
    ],
    "products": [
        ("product_id", "varchar"), ("product_name", "varchar"), ("category", "varchar"), ("list_price", "double"),
        ("launch_date", "varchar"), ("updated_at", "timestamp"),
    ],
    "orders": [
        ("order_id", "varchar"), ("customer_id", "varchar"), ("order_date", "varchar"), ("status", "varchar"),
        ("updated_at", "timestamp"),
    ],
    "order_items": [
        ("order_item_id", "varchar"), ("order_id", "varchar"), ("product_id", "varchar"), ("quantity", "integer"),
        ("unit_price", "double"), ("discount_pct", "double"), ("updated_at", "timestamp"),
    ],
}
RULES = {
    "customers": ([], [
        ("missing_region", "region is null"),
        ("invalid_region", f"region not in {oracle.REGIONS}"),
    ]),
    "orders": ([
        ("customer_not_resolved", "customer_id is null or customer_id not in (select customer_id from customers)"),
    ], [
        ("missing_order_date", "order_date is null"),
        ("invalid_status", f"status not in {oracle.STATUSES}"),
        ("future_order_date", f"cast(order_date as date) > date '{TODAY}'"),
    ]),
    "order_items": ([
        ("invalid_discount_pct", "discount_pct not between 0 and 100"),
        ("product_not_resolved", "product_id is null or product_id not in (select product_id from products)"),
    ], [
        ("missing_quantity", "quantity is null"),
        ("order_not_resolved", "order_id is null or order_id not in (select order_id from orders)"),
        ("negative_net_price", "unit_price * (1 - discount_pct / 100) < 0"),
        ("excessive_quantity", "quantity > 10"),
    ]),
}


class Feeds:
    """Change feeds as they arrive: `rows[feed][batch]`, each batch in random order."""

    def __init__(self, orders, batches, seed):
        self.dice, self.batches = random.Random(seed), batches
        self.rows = {feed: [[] for _ in range(batches)] for feed in FEEDS}
        customers, products = max(10, orders // 6), 400
        for n in range(customers):
            self.customer(n)
        for n in range(products):
            late = self.dice.random() < 0.05
            price = round(39.99 + 150 * self.dice.random(), 2)
            self.send("products", self.dice.random() if late else 0, 0, n, [
                f"PROD-{n:05d}", f"Shoe {n}", ["Running", "Trail", "Casual"][n % 3], price, "2025-01-01"])
        for n in range(orders):
            self.order(n, customers, products)
        for batches in self.rows.values():
            for rows in batches:
                self.dice.shuffle(rows)

    def send(self, feed, life, late, seconds, values):
        batch = min(self.batches - 1, int(self.batches * life) + late)
        at = (START + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")
        self.rows[feed][batch].append(dict(zip([name for name, _ in FEEDS[feed]], [*values, at])))

    def one_of(self, *choices):
        """The value of the first choice whose share is hit; the last one otherwise."""
        hit = self.dice.random()
        for share, value in choices[:-1]:
            if hit < share:
                return value
            hit -= share
        return choices[-1]

    def customer(self, n):
        life = self.dice.random()
        late = self.dice.random() < 0.05
        for change in range(2 if life < 0.33 else 1):
            region = self.one_of((0.02, None), (0.01, "ATLANTIS"), ["NORTHEAST", "SOUTHEAST", "WEST"][(n + change) % 3])
            email = self.one_of((0.02, None), f"c{n}@example.com")
            first = self.dice.uniform(0.3, 1) if late else 0
            self.send("customers", 0.5 + life / 2 if change else first, 0, life * 20 * 86400 + change * 30 * 86400, [
                f"CUST-{n:06d}", f"First{n % 997}", f"Last{n % 1009}", email, region, "2023-05-01"])

    def order(self, n, customers, products):
        life = self.dice.random()
        placed = int(life * 180 * 86400)
        day = (START + datetime.timedelta(seconds=placed)).strftime("%Y-%m-%d")
        customer = self.one_of((0.01, "CUST-999999"), f"CUST-{self.dice.randrange(customers):06d}")
        date = self.one_of((0.01, None), (0.01, "2099-12-31"), day)
        for change in range(self.dice.randint(1, 4)):
            status = ["PLACED", "SHIPPED", "DELIVERED", self.one_of((0.05, "LOST"), "CANCELLED")][change]
            late = self.dice.randint(1, 3) if self.dice.random() < 0.05 else 0
            self.send("orders", life, late, placed + change * 3600, [f"ORD-{n:07d}", customer, date, status])
        for k in range(self.dice.randint(1, 4)):
            product = self.one_of((0.02, "PROD-99999"), f"PROD-{self.dice.randrange(products):05d}")
            price = self.one_of((0.005, -9.99), round(39.99 + 150 * self.dice.random(), 2))
            discount = self.one_of((0.003, 150.0), round(30 * self.dice.random(), 1))
            for change in range(2 if self.dice.random() < 0.1 else 1):
                quantity = self.one_of((0.01, None), (0.01, 12), self.dice.randint(1, 3) + change)
                self.send("order_items", life, change, placed + change * 7200, [
                    f"ITEM-{n * 4 + k:08d}", f"ORD-{n:07d}", product, quantity, price, discount])

    def write(self, folder):
        for feed, batches in self.rows.items():
            (folder / feed).mkdir(parents=True)
            for batch, rows in enumerate(batches):
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (folder / feed / f"batch_{batch:03d}.json").write_text(text)


def expect(con, landing):
    for feed, columns in FEEDS.items():
        oracle.feed(con, feed, landing / feed, columns)
    built = []
    for feed, (failures, warnings) in RULES.items():
        con.execute(
            f"""create or replace table {feed}_tagged as select distinct *,
            {oracle.tags(failures) if failures else "[]::varchar[]"} _dq_critical_failures,
            {oracle.tags(warnings)} _dq_warnings from {feed}"""
        )
        con.execute(f"create or replace view {feed}_clean as from {feed}_tagged where len(_dq_critical_failures) = 0")
        key, *values = [name for name, _ in FEEDS[feed]]
        oracle.history(con, f"silver_{feed}", f"{feed}_clean", key, values, ["_dq_warnings"])
        built.append(f"silver_{feed}")
        if failures:
            con.execute(
                f"""create or replace table silver_{feed}_quarantine as
                select *, true as _dq_critical_failed from {feed}_tagged where len(_dq_critical_failures) > 0"""
            )
            built.append(f"silver_{feed}_quarantine")
    return built


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--orders", type=int, default=12_000)
    arguments.add_argument("--batches", type=int, default=10)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--permute", type=int, help="each feed's batches come in an order of their own")
    arguments.add_argument("--feeds", type=pathlib.Path)
    arguments = arguments.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="silverflow-plain-"))
    project, feeds = work / "project", arguments.feeds or work / "feeds"
    shutil.copytree(ROOT / "tests" / "step_right", project, ignore=shutil.ignore_patterns("landing", "lakehouse"))
    if not arguments.feeds:
        Feeds(arguments.orders, arguments.batches, arguments.seed).write(feeds)

    con = oracle.connect()
    oracle.load_delta(con)
    equal, released = True, {"orders": 0, "order_items": 0}
    before = {feed: set() for feed in released}
    order = arrivals(FEEDS, arguments.batches, arguments.permute)
    for batch in range(arguments.batches):
        copy_batch(feeds, project / "landing", batch, order)
        spec, wall = project / "spark-pipeline.yml", f"{TODAY}T12:00:00Z"
        silverflow("run", "--spec", spec, "--wall", wall, "--workers", arguments.workers)
        found = tables(project / "lakehouse")
        counts = []
        for name in expect(con, project / "landing"):
            con.execute(f"create or replace view actual as from delta_scan('{found['default.' + name]}')")
            equal &= report(f"batch {batch} {name}", *oracle.difference(con, "actual", name))
            counts.append(f"{name} {con.execute(f'select count(*) from {name}').fetchone()[0]}")
        for feed in released:
            key = FEEDS[feed][0][0]
            rows = con.execute(f"select {key}, updated_at from silver_{feed}_quarantine").fetchall()
            released[feed] += len(before[feed] - set(rows))
            before[feed] = set(rows)
        print(f"batch {batch}: " + ", ".join(counts), flush=True)
    print(f"changes released from quarantine by late references: {released}")
    if not all(released.values()):
        sys.exit("nothing was ever released, so the check shows nothing about late references")
    if not equal:
        sys.exit(f"the tables differ from DuckDB's; they are kept in {work}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
