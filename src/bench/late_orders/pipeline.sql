CREATE OR REFRESH STREAMING TABLE orders_bronze
AS SELECT * FROM STREAM read_files(
  '${landing}/orders',
  format => 'parquet',
  maxFilesPerTrigger => 1,
  schema => 'order_id STRING, customer_id STRING, updated_at TIMESTAMP'
);

CREATE OR REFRESH STREAMING TABLE items_bronze
AS SELECT * FROM STREAM read_files(
  '${landing}/items',
  format => 'parquet',
  maxFilesPerTrigger => 1,
  schema => 'item_id STRING, order_id STRING, product_id STRING, quantity BIGINT, updated_at TIMESTAMP'
);

CREATE TEMPORARY VIEW known_orders AS SELECT DISTINCT order_id FROM orders_bronze;

CREATE TEMPORARY VIEW items_checked AS
SELECT i.*, o.order_id IS NOT NULL AS order_known
FROM STREAM(items_bronze) AS i
LEFT JOIN known_orders AS o ON i.order_id = o.order_id;

CREATE TEMPORARY VIEW items_resolved AS
SELECT * EXCEPT (order_known) FROM STREAM(items_checked) WHERE order_known;

CREATE OR REFRESH STREAMING TABLE silver_items;

CREATE FLOW items_history AS AUTO CDC INTO silver_items
FROM STREAM(items_resolved)
KEYS (item_id)
SEQUENCE BY updated_at
COLUMNS * EXCEPT (updated_at)
STORED AS SCD TYPE 2;

CREATE OR REFRESH STREAMING TABLE items_waiting;

CREATE FLOW items_rejected AS INSERT INTO items_waiting BY NAME
SELECT * EXCEPT (order_known) FROM STREAM(items_checked) WHERE NOT order_known;
