-- Orders: an order of a customer whom nobody knows yet waits in quarantine, and enters the history at its own place
-- when the customer arrives. A delete names its key alone, so no rule about other columns applies to it.

CREATE TEMPORARY VIEW orders_tagged AS
SELECT
  o.order_id, o.customer_id, o.order_date, o.status, o.operation, o.updated_at,
  array_except(
    array(
      CASE WHEN o.operation <> 'DELETE' AND c.customer_id IS NULL THEN 'customer_not_resolved' END
    ),
    array(CAST(NULL AS STRING))
  ) AS _dq_critical_failures,
  array_except(
    array(
      CASE WHEN o.operation <> 'DELETE' AND o.order_date IS NULL THEN 'missing_order_date' END,
      CASE WHEN o.status NOT IN ('PLACED', 'SHIPPED', 'DELIVERED', 'CANCELLED') THEN 'unknown_status' END,
      CASE WHEN o.order_date > current_date() THEN 'future_order_date' END
    ),
    array(CAST(NULL AS STRING))
  ) AS _dq_warnings
FROM STREAM(orders_bronze) AS o
LEFT JOIN known_customers AS c ON o.customer_id = c.customer_id;

CREATE TEMPORARY VIEW orders_clean AS
SELECT order_id, customer_id, order_date, status, operation, updated_at, _dq_warnings
FROM STREAM(orders_tagged)
WHERE size(_dq_critical_failures) = 0;

CREATE OR REFRESH STREAMING TABLE silver_orders
COMMENT 'Every version of every order that can be trusted';

CREATE FLOW orders_history AS AUTO CDC INTO silver_orders
FROM STREAM(orders_clean)
KEYS (order_id)
APPLY AS DELETE WHEN operation = 'DELETE'
SEQUENCE BY updated_at
COLUMNS * EXCEPT (operation, updated_at)
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (_dq_warnings);

CREATE OR REFRESH STREAMING TABLE silver_orders_quarantine
COMMENT 'The changes of orders that fail a critical rule now';

CREATE FLOW orders_rejected AS INSERT INTO silver_orders_quarantine BY NAME
SELECT * FROM STREAM(orders_tagged)
WHERE size(_dq_critical_failures) > 0;
