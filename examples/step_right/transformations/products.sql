-- Products: nothing to judge beyond the contract, so the history is fed by the bronze table itself.

CREATE OR REFRESH STREAMING TABLE silver_products
COMMENT 'Every version of every product';

CREATE FLOW products_history AS AUTO CDC INTO silver_products
FROM STREAM(products_bronze)
KEYS (product_id)
SEQUENCE BY updated_at
COLUMNS * EXCEPT (updated_at, _corrupt_record)
STORED AS SCD TYPE 2;
