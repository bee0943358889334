"""Bronze: every change as it arrived, under a contract. One function declares all four feeds."""

import dlt
from dq_helpers import contract

LANDING = spark.conf.get("landing")  # noqa: F821
FORMAT = dbutils.widgets.get("format")  # noqa: F821

FEEDS = {
    "customers": (
        "customer_id",
        "first_name STRING, last_name STRING, email STRING, region STRING, signup_date DATE, operation STRING",
    ),
    "products": (
        "product_id",
        "product_name STRING, category STRING, list_price DECIMAL(10, 2), launch_date DATE",
    ),
    "orders": ("order_id", "customer_id STRING, order_date DATE, status STRING, operation STRING"),
    "order_items": (
        "order_item_id",
        "order_id STRING, product_id STRING, quantity INT, unit_price DECIMAL(10, 2), discount_pct DECIMAL(5, 1), "
        "operation STRING",
    ),
}


def bronze(feed: str, key: str, columns: str) -> None:
    waiting, stopping = contract(key, has_operation="operation" in columns)
    rescues = feed == "order_items"

    @dlt.expect_all_or_quarantine(waiting)
    @dlt.expect_all_or_fail(stopping)
    @dlt.expect_all({"nothing_rescued": "_rescued_data IS NULL"} if rescues else {})
    @dlt.table(name=f"{feed}_bronze", comment=f"Changes of {feed.replace('_', ' ')} as they arrived")
    def changes():
        schema = f"{key} STRING, {columns}, updated_at TIMESTAMP, _corrupt_record STRING"
        reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", FORMAT)  # noqa: F821
        if rescues:
            schema += ", _rescued_data STRING"
            reader = reader.option("rescuedDataColumn", "_rescued_data")
        return reader.schema(schema).load(f"{LANDING}/{feed}")


for name, (key, columns) in FEEDS.items():
    bronze(name, key, columns)


# What is known: the references that orders and items are checked against.


@dlt.view
def known_customers():
    return spark.read.table("customers_bronze").select("customer_id").distinct()  # noqa: F821


@dlt.view
def known_products():
    return dlt.read("products_bronze").select("product_id").dropDuplicates()


@dlt.temporary_view
def known_orders():
    return spark.sql("SELECT DISTINCT order_id FROM orders_bronze")  # noqa: F821
