--@ show t
CREATE STREAMING TABLE t AS
SELECT concat_ws('|', x.*) AS joined, coalesce(label, concat_ws('-', *)) AS first, current_catalog() AS catalog,
  current_schema() AS schema, array_sort(array(1, 3, id), (a, b) -> b - a) AS falling
FROM STREAM r AS x;
