--@ show t
CREATE STREAMING TABLE t AS SELECT id, DATE'2024-01-02' AS d, TIMESTAMP '2024-01-02 03:04:05' AS t,
  TIMESTAMP_NTZ'2024-01-02 03:04:05' AS n, TIMESTAMP_LTZ '2024-01-02T03:04:05+01:00' AS z, X'1F2a' AS x, 7L AS l, 3S AS s,
  2Y AS y, 1.5D AS dd, 2.5F AS f, 3.10BD AS bd, 1e3 AS e, .5 AS half, r'\d' AS raw, 'a' 'b' AS both, "it's" AS dq,
  'tab\t\u00e9' AS escaped, true AS yes, NULL AS nothing FROM STREAM s WHERE id = 1;
