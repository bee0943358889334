-- What the pipelines of this folder read, unless they begin with `--@ alone`.
CREATE STREAMING TABLE s AS SELECT * FROM STREAM read_files('landing/s', format => 'json', schema =>
  'id INT, name STRING, qty DECIMAL(10,2), at TIMESTAMP, day DATE, tags ARRAY<STRING>, scores MAP<STRING, INT>,
   address STRUCT<city: STRING, zip: STRING>, lines ARRAY<STRUCT<sku: STRING, n: INT>>, doc STRING, op STRING');
CREATE STREAMING TABLE r AS SELECT * FROM STREAM read_files('landing/r', format => 'json', schema => 'id INT, label STRING');
