-- Bronze: every change as it arrived, under a contract.
--
-- The feeds are stored once, here; everything after them can be rebuilt from these tables, also when the landing
-- folder has long been emptied. A broken promise of the sender (no key, no order of changes, an unknown operation)
-- stops the run before anything is committed. A record that cannot be read promises nothing: it goes to
-- <table>_quarantine with its text, and so does a change that claims to come from the future.

CREATE OR REFRESH STREAMING TABLE customers_bronze (
  CONSTRAINT readable EXPECT (_corrupt_record IS NULL) ON VIOLATION QUARANTINE,
  CONSTRAINT not_from_the_future EXPECT (_corrupt_record IS NOT NULL OR updated_at <= current_timestamp()) ON VIOLATION QUARANTINE,
  CONSTRAINT has_key EXPECT (_corrupt_record IS NOT NULL OR customer_id IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT has_sequence EXPECT (_corrupt_record IS NOT NULL OR updated_at IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT known_operation EXPECT (_corrupt_record IS NOT NULL OR operation IN ('UPSERT', 'DELETE')) ON VIOLATION FAIL UPDATE
)
COMMENT 'Changes of customers as they arrived'
AS SELECT * FROM STREAM read_files(
  '${landing}/customers',
  format => '${format}',
  schema => 'customer_id STRING, first_name STRING, last_name STRING, email STRING, region STRING, signup_date DATE,
             operation STRING, updated_at TIMESTAMP, _corrupt_record STRING'
);

CREATE OR REFRESH STREAMING TABLE products_bronze (
  CONSTRAINT readable EXPECT (_corrupt_record IS NULL) ON VIOLATION QUARANTINE,
  CONSTRAINT not_from_the_future EXPECT (_corrupt_record IS NOT NULL OR updated_at <= current_timestamp()) ON VIOLATION QUARANTINE,
  CONSTRAINT has_key EXPECT (_corrupt_record IS NOT NULL OR product_id IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT has_sequence EXPECT (_corrupt_record IS NOT NULL OR updated_at IS NOT NULL) ON VIOLATION FAIL UPDATE
)
COMMENT 'Changes of products as they arrived'
AS SELECT * FROM STREAM read_files(
  '${landing}/products',
  format => '${format}',
  schema => 'product_id STRING, product_name STRING, category STRING, list_price DECIMAL(10, 2), launch_date DATE,
             updated_at TIMESTAMP, _corrupt_record STRING'
);

CREATE OR REFRESH STREAMING TABLE orders_bronze (
  CONSTRAINT readable EXPECT (_corrupt_record IS NULL) ON VIOLATION QUARANTINE,
  CONSTRAINT not_from_the_future EXPECT (_corrupt_record IS NOT NULL OR updated_at <= current_timestamp()) ON VIOLATION QUARANTINE,
  CONSTRAINT has_key EXPECT (_corrupt_record IS NOT NULL OR order_id IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT has_sequence EXPECT (_corrupt_record IS NOT NULL OR updated_at IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT known_operation EXPECT (_corrupt_record IS NOT NULL OR operation IN ('UPSERT', 'DELETE')) ON VIOLATION FAIL UPDATE
)
COMMENT 'Changes of orders as they arrived'
AS SELECT * FROM STREAM read_files(
  '${landing}/orders',
  format => '${format}',
  schema => 'order_id STRING, customer_id STRING, order_date DATE, status STRING, operation STRING,
             updated_at TIMESTAMP, _corrupt_record STRING'
);

CREATE OR REFRESH STREAMING TABLE order_items_bronze (
  CONSTRAINT readable EXPECT (_corrupt_record IS NULL) ON VIOLATION QUARANTINE,
  CONSTRAINT not_from_the_future EXPECT (_corrupt_record IS NOT NULL OR updated_at <= current_timestamp()) ON VIOLATION QUARANTINE,
  CONSTRAINT has_key EXPECT (_corrupt_record IS NOT NULL OR order_item_id IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT has_sequence EXPECT (_corrupt_record IS NOT NULL OR updated_at IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT known_operation EXPECT (_corrupt_record IS NOT NULL OR operation IN ('UPSERT', 'DELETE')) ON VIOLATION FAIL UPDATE,
  CONSTRAINT nothing_rescued EXPECT (_rescued_data IS NULL)
)
COMMENT 'Changes of order items as they arrived; a field that does not fit its type is in _rescued_data'
AS SELECT * FROM STREAM read_files(
  '${landing}/order_items',
  format => '${format}',
  schema => 'order_item_id STRING, order_id STRING, product_id STRING, quantity INT, unit_price DECIMAL(10, 2),
             discount_pct DECIMAL(5, 1), operation STRING, updated_at TIMESTAMP, _corrupt_record STRING,
             _rescued_data STRING',
  rescuedDataColumn => '_rescued_data'
);

-- What is known: the references that orders and items are checked against.

CREATE TEMPORARY VIEW known_customers AS SELECT DISTINCT customer_id FROM customers_bronze;

CREATE TEMPORARY VIEW known_products AS SELECT DISTINCT product_id FROM products_bronze;

CREATE TEMPORARY VIEW known_orders AS SELECT DISTINCT order_id FROM orders_bronze;
