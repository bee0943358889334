-- Order items: they often arrive before their order, which is worth a warning that goes away by itself; a product
-- that nobody knows or an impossible discount keeps a change out of the history until it is put right.

CREATE TEMPORARY VIEW order_items_tagged AS
SELECT
  i.order_item_id, i.order_id, i.product_id, i.quantity, i.unit_price, i.discount_pct, i.operation, i.updated_at,
  array_except(
    array(
      CASE WHEN i.discount_pct < 0 OR i.discount_pct > 100 THEN 'invalid_discount_pct' END,
      CASE WHEN i.operation <> 'DELETE' AND p.product_id IS NULL THEN 'product_not_resolved' END
    ),
    array(CAST(NULL AS STRING))
  ) AS _dq_critical_failures,
  array_except(
    array(
      CASE WHEN i.operation <> 'DELETE' AND i.quantity IS NULL THEN 'missing_quantity' END,
      CASE WHEN i.operation <> 'DELETE' AND o.order_id IS NULL THEN 'order_not_resolved' END,
      CASE WHEN i.unit_price * (1 - i.discount_pct / 100) < 0 THEN 'negative_net_price' END,
      CASE WHEN i.quantity > 10 THEN 'excessive_quantity' END
    ),
    array(CAST(NULL AS STRING))
  ) AS _dq_warnings
FROM STREAM(order_items_bronze) AS i
LEFT JOIN known_products AS p ON i.product_id = p.product_id
LEFT JOIN known_orders AS o ON i.order_id = o.order_id;

CREATE TEMPORARY VIEW order_items_clean AS
SELECT order_item_id, order_id, product_id, quantity, unit_price, discount_pct, operation, updated_at, _dq_warnings
FROM STREAM(order_items_tagged)
WHERE size(_dq_critical_failures) = 0;

CREATE OR REFRESH STREAMING TABLE silver_order_items
COMMENT 'Every version of every order item that can be trusted';

CREATE FLOW order_items_history AS AUTO CDC INTO silver_order_items
FROM STREAM(order_items_clean)
KEYS (order_item_id)
APPLY AS DELETE WHEN operation = 'DELETE'
SEQUENCE BY updated_at
COLUMNS * EXCEPT (operation, updated_at)
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (_dq_warnings);

CREATE OR REFRESH STREAMING TABLE silver_order_items_quarantine
COMMENT 'The changes of order items that fail a critical rule now';

CREATE FLOW order_items_rejected AS INSERT INTO silver_order_items_quarantine BY NAME
SELECT * FROM STREAM(order_items_tagged)
WHERE size(_dq_critical_failures) > 0;
