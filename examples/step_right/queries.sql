-- Orders as they are now.
SELECT status, COUNT(*) AS orders
FROM silver_orders
WHERE __END_AT IS NULL
GROUP BY status
ORDER BY status;

-- The history of one order.
SELECT order_id, status, _dq_warnings, __START_AT, __END_AT
FROM silver_orders
WHERE order_id = 'ORD-0000031'
ORDER BY __START_AT;

-- What is in quarantine, by rule.
SELECT explode(_dq_critical_failures) AS rule, COUNT(*) AS rows
FROM silver_orders_quarantine
GROUP BY rule
ORDER BY rule;

SELECT explode(_dq_critical_failures) AS rule, COUNT(*) AS rows
FROM silver_order_items_quarantine
GROUP BY rule
ORDER BY rule;

-- What is wrong with the rows that are current.
SELECT explode(_dq_warnings) AS rule, COUNT(*) AS rows
FROM silver_order_items
WHERE __END_AT IS NULL
GROUP BY rule
ORDER BY rule;
