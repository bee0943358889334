CREATE STREAMING TABLE customers AS SELECT * FROM STREAM read_files(
  '${landing}/customers', format => '${format}',
  schema => 'customer_id STRING, first_name STRING, last_name STRING, email STRING, region STRING, signup_date STRING,
             updated_at TIMESTAMP_NTZ'
);

CREATE STREAMING TABLE products AS SELECT * FROM STREAM read_files(
  '${landing}/products', format => '${format}',
  schema => 'product_id STRING, product_name STRING, category STRING, list_price DOUBLE, launch_date STRING,
             updated_at TIMESTAMP_NTZ'
);

CREATE STREAMING TABLE orders AS SELECT * FROM STREAM read_files(
  '${landing}/orders', format => '${format}',
  schema => 'order_id STRING, customer_id STRING, order_date STRING, status STRING, updated_at TIMESTAMP_NTZ'
);

CREATE STREAMING TABLE order_items AS SELECT * FROM STREAM read_files(
  '${landing}/order_items', format => '${format}',
  schema => 'order_item_id STRING, order_id STRING, product_id STRING, quantity INT, unit_price DOUBLE,
             discount_pct DOUBLE, updated_at TIMESTAMP_NTZ'
);

CREATE TEMPORARY VIEW customers_tagged AS
SELECT *,
  array_except(array(
    CASE WHEN region IS NULL THEN 'missing_region' END,
    CASE WHEN region IS NOT NULL AND region NOT IN ('NORTHEAST', 'SOUTHEAST', 'MIDWEST', 'WEST') THEN 'invalid_region' END
  ), array(CAST(NULL AS STRING))) AS _dq_warnings
FROM STREAM(customers);

CREATE STREAMING TABLE silver_customers;
CREATE FLOW customers_history AS AUTO CDC INTO silver_customers
FROM STREAM(customers_tagged)
KEYS (customer_id)
SEQUENCE BY updated_at
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (_dq_warnings);

CREATE TEMPORARY VIEW orders_tagged AS
SELECT o.order_id, o.customer_id, o.order_date, o.status, o.updated_at,
  array_except(array(
    CASE WHEN c.customer_id IS NULL THEN 'customer_not_resolved' END
  ), array(CAST(NULL AS STRING))) AS _dq_critical_failures,
  array_except(array(
    CASE WHEN o.order_date IS NULL THEN 'missing_order_date' END,
    CASE WHEN o.status IS NOT NULL AND o.status NOT IN ('PLACED', 'SHIPPED', 'DELIVERED', 'CANCELLED') THEN 'invalid_status' END,
    CASE WHEN CAST(o.order_date AS DATE) > current_date() THEN 'future_order_date' END
  ), array(CAST(NULL AS STRING))) AS _dq_warnings
FROM STREAM(orders) AS o
LEFT JOIN (SELECT DISTINCT customer_id FROM customers) AS c ON o.customer_id = c.customer_id;

CREATE TEMPORARY VIEW orders_clean AS
SELECT order_id, customer_id, order_date, status, updated_at, _dq_warnings
FROM STREAM(orders_tagged) WHERE size(_dq_critical_failures) = 0;

CREATE STREAMING TABLE silver_orders;
CREATE FLOW orders_history AS AUTO CDC INTO silver_orders
FROM STREAM(orders_clean)
KEYS (order_id)
SEQUENCE BY updated_at
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (_dq_warnings);

CREATE STREAMING TABLE silver_orders_quarantine;
CREATE FLOW orders_rejected AS INSERT INTO silver_orders_quarantine BY NAME
SELECT *, true AS _dq_critical_failed FROM STREAM(orders_tagged) WHERE size(_dq_critical_failures) > 0;

CREATE TEMPORARY VIEW order_items_tagged AS
SELECT i.order_item_id, i.order_id, i.product_id, i.quantity, i.unit_price, i.discount_pct, i.updated_at,
  array_except(array(
    CASE WHEN i.discount_pct < 0 OR i.discount_pct > 100 THEN 'invalid_discount_pct' END,
    CASE WHEN p.product_id IS NULL THEN 'product_not_resolved' END
  ), array(CAST(NULL AS STRING))) AS _dq_critical_failures,
  array_except(array(
    CASE WHEN i.quantity IS NULL THEN 'missing_quantity' END,
    CASE WHEN o.order_id IS NULL THEN 'order_not_resolved' END,
    CASE WHEN i.unit_price * (1 - i.discount_pct / 100) < 0 THEN 'negative_net_price' END,
    CASE WHEN i.quantity > 10 THEN 'excessive_quantity' END
  ), array(CAST(NULL AS STRING))) AS _dq_warnings
FROM STREAM(order_items) AS i
LEFT JOIN (SELECT DISTINCT product_id FROM products) AS p ON i.product_id = p.product_id
LEFT JOIN (SELECT DISTINCT order_id FROM orders) AS o ON i.order_id = o.order_id;

CREATE TEMPORARY VIEW order_items_clean AS
SELECT order_item_id, order_id, product_id, quantity, unit_price, discount_pct, updated_at, _dq_warnings
FROM STREAM(order_items_tagged) WHERE size(_dq_critical_failures) = 0;

CREATE STREAMING TABLE silver_order_items;
CREATE FLOW order_items_history AS AUTO CDC INTO silver_order_items
FROM STREAM(order_items_clean)
KEYS (order_item_id)
SEQUENCE BY updated_at
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (_dq_warnings);

CREATE STREAMING TABLE silver_order_items_quarantine;
CREATE FLOW order_items_rejected AS INSERT INTO silver_order_items_quarantine BY NAME
SELECT *, true AS _dq_critical_failed FROM STREAM(order_items_tagged) WHERE size(_dq_critical_failures) > 0;
