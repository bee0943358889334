--@ alone
--@ show t
--@ show u
CREATE STREAMING TABLE t AS SELECT id, explode(lines) AS line, at FROM STREAM read_files('landing/s', format => 'json',
  schema => 'id INT, at TIMESTAMP, lines ARRAY<STRUCT<sku: STRING, n: INT>>');
CREATE STREAMING TABLE u FLOW AUTO CDC FROM STREAM t_flat KEYS (id, sku) SEQUENCE BY at COLUMNS * EXCEPT (at) STORED AS SCD TYPE 2;
CREATE VIEW t_flat AS SELECT id, line.sku, line.n, at FROM STREAM t;
