-- Customers: no rule is critical, so every change becomes history; the warnings ride along.

CREATE TEMPORARY VIEW customers_tagged AS
SELECT
  customer_id, first_name, last_name, email, region, signup_date, operation, updated_at,
  array_except(
    array(
      CASE WHEN region IS NULL THEN 'missing_region' END,
      CASE WHEN region NOT IN ('NORTHEAST', 'SOUTHEAST', 'MIDWEST', 'WEST') THEN 'invalid_region' END
    ),
    array(CAST(NULL AS STRING))
  ) AS _dq_warnings
FROM STREAM(customers_bronze);

CREATE OR REFRESH STREAMING TABLE silver_customers
COMMENT 'Every version of every customer';

CREATE FLOW customers_history AS AUTO CDC INTO silver_customers
FROM STREAM(customers_tagged)
KEYS (customer_id)
APPLY AS DELETE WHEN operation = 'DELETE'
SEQUENCE BY updated_at
COLUMNS * EXCEPT (operation, updated_at)
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (_dq_warnings);
