--@ show t
CREATE STREAMING TABLE t AS SELECT id, name <=> NULL AS a, name RLIKE '^A' AS b, name LIKE ANY ('A%', 'B%') AS c,
  name NOT LIKE ALL ('A%', '%b') AS d, name ILIKE 'a_a' AS e, day = '2024-01-31' AS f, id = '1' AS g, id == 1 OR !(id <> 2) AS h,
  (id, name) IN ((1, 'Ada'), (3, CAST(NULL AS STRING))) AS i, id BETWEEN 1 AND 2 AS j, (id > 1) IS NOT FALSE AS k, name IS DISTINCT FROM 'Bob' AS l,
  id >>> 1 AS m, id DIV 2 AS n, TRY_CAST(name AS INT) AS r, name LIKE SOME ('A!%', 'B%') AS s, name LIKE 'A!%' ESCAPE '!' AS t, id % 2 AS o, ~id & 7 AS p, qty > 3 AS q FROM STREAM s;
