--@ show t
CREATE STREAMING TABLE t AS SELECT id, doc:a.b AS b, doc:a.b::int + 1 AS c, doc:t[1]::bigint AS d, doc:['c d'] AS e,
  id::string AS f, address.city AS g, address['zip'] AS h, get(lines, 0).sku AS i, lines.n AS j, scores['x'] AS k, scores.y AS l,
  variant_get(doc, '$.a.b', 'int') AS m, try_variant_get(doc, '$.a', 'int') AS n FROM STREAM s;
