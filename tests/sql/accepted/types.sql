--@ show t
CREATE STREAMING TABLE t (a STRUCT<x: INT, `y z`: ARRAY<MAP<STRING, DECIMAL(5,1)>> NOT NULL COMMENT 'c'>, b VARCHAR(3), c VARIANT,
  d TIMESTAMP_NTZ, e BINARY, f REAL, g DEC, h SHORT, i BOOLEAN, j BYTE, k TINYINT, l SMALLINT, m INTEGER, n LONG, o BIGINT,
  p FLOAT, q DOUBLE, r NUMERIC(4), s VARCHAR(2), t TIMESTAMP_LTZ) AS
SELECT named_struct('x', id, 'y z', array(map('k', 1.5))) AS a, 'abc' AS b, doc AS c, TIMESTAMP_NTZ'2024-01-01' AS d,
  X'00' AS e, 1.5F AS f, 7BD AS g, 3S AS h, id = 1 AS i, 1 AS j, 2 AS k, 3 AS l, 4 AS m, 5 AS n, 6 AS o, 7 AS p, 8 AS q,
  9 AS r, 'ab   ' AS s, at AS t FROM STREAM s WHERE id = 1;
