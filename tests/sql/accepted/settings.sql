--@ show t
SET TIME ZONE 'Europe/Berlin';
SET threshold = 2; -- a variable
USE CATALOG main; USE SCHEMA other; USE main.default;
CREATE STREAMING TABLE t AS SELECT id, CAST(at AS STRING) AS local FROM STREAM s WHERE id <= ${threshold};
