"""Silver: rows are tagged with the rules they break, those that break no critical one become history, the others wait."""

from collections.abc import Callable

from dq_helpers import any_of, tags
from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, current_date, expr, lit, size

PLACES = ["NORTHEAST", "SOUTHEAST", "MIDWEST", "WEST"]
STATES = ["PLACED", "SHIPPED", "DELIVERED", "CANCELLED"]


def history(name: str, key: str, source: str, comment: str, control: list[str]) -> None:
    """The history of a feed, by its key and the moment of each change."""
    dp.create_streaming_table(f"silver_{name}", comment=comment)
    dp.create_auto_cdc_flow(
        target=f"silver_{name}",
        source=source,
        keys=[key],
        sequence_by=col("updated_at"),
        apply_as_deletes=expr("operation = 'DELETE'") if "operation" in control else None,
        except_column_list=control,
        stored_as_scd_type=2,
        track_history_except_column_list=["_dq_warnings"] if source.endswith(("_clean", "_tagged")) else None,
        name=f"{name}_history",
    )


def judged(name: str, key: str, comment: str, tagged: Callable[[], DataFrame]) -> None:
    """A feed with critical rules: its history, and a quarantine for what breaks one of them now."""
    dp.temporary_view(name=f"{name}_tagged")(tagged)

    @dp.temporary_view(name=f"{name}_clean")
    def clean():
        rows = spark.readStream.table(f"{name}_tagged")  # noqa: F821
        return rows.where(size("_dq_critical_failures") == 0).drop("_dq_critical_failures")

    history(name, key, f"{name}_clean", comment, ["operation", "updated_at"])
    dp.create_streaming_table(f"silver_{name}_quarantine", comment="Changes that fail a critical rule now")

    @dp.append_flow(target=f"silver_{name}_quarantine", name=f"{name}_rejected")
    def rejected():
        return spark.readStream.table(f"{name}_tagged").filter("size(_dq_critical_failures) > 0")  # noqa: F821


@dp.temporary_view
def customers_tagged():
    region = col("region")
    warnings = {"missing_region": region.isNull(), "invalid_region": ~region.isin(PLACES)}
    rows = spark.readStream.table("customers_bronze")  # noqa: F821
    return rows.drop("_corrupt_record").withColumn("_dq_warnings", tags(warnings))


history("customers", "customer_id", "customers_tagged", "Every version of every customer", ["operation", "updated_at"])
history("products", "product_id", "products_bronze", "Every version of every product", ["updated_at", "_corrupt_record"])


def orders() -> DataFrame:
    o = spark.readStream.table("orders_bronze").drop("_corrupt_record").alias("o")  # noqa: F821
    c = spark.read.table("known_customers").alias("c")  # noqa: F821
    upsert = col("o.operation") != "DELETE"
    critical = {"customer_not_resolved": upsert & col("c.customer_id").isNull()}
    warnings = {
        "missing_order_date": upsert & col("o.order_date").isNull(),
        "unknown_status": ~col("o.status").isin(*STATES),
        "future_order_date": col("o.order_date") > current_date(),
    }
    joined = o.join(c, col("o.customer_id") == col("c.customer_id"), "left")
    return joined.select("o.*", tags(critical).alias("_dq_critical_failures"), tags(warnings).alias("_dq_warnings"))


judged("orders", "order_id", "Every version of every order that can be trusted", orders)


def order_items() -> DataFrame:
    items = spark.readStream.table("order_items_bronze")  # noqa: F821
    products = spark.read.table("known_products")  # noqa: F821
    known = spark.read.table("known_orders")  # noqa: F821
    upsert = items.operation != "DELETE"
    critical = {
        "invalid_discount_pct": any_of(items.discount_pct < 0, items.discount_pct > 100),
        "product_not_resolved": upsert & products.product_id.isNull(),
    }
    warnings = {
        "missing_quantity": upsert & items["quantity"].isNull(),
        "order_not_resolved": upsert & known["order_id"].isNull(),
        "negative_net_price": items.unit_price * (lit(1) - items.discount_pct / 100) < 0,
        "excessive_quantity": items.quantity > 10,
    }
    return (
        items.join(products, items.product_id == products.product_id, "left")
        .join(known, items.order_id == known.order_id, "left")
        .withColumns({"_dq_critical_failures": tags(critical), "_dq_warnings": tags(warnings)})
        .drop(products.product_id, known.order_id)
        .drop("_corrupt_record", "_rescued_data")
    )


judged("order_items", "order_item_id", "Every version of every order item that can be trusted", order_items)
