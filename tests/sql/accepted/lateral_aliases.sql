--@ show t
CREATE STREAMING TABLE t AS SELECT id AS key, key + 1 AS next, next * 2 AS twice, upper(name) AS name, name AS same FROM STREAM s;
