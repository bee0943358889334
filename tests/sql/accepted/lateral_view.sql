--@ show a
--@ show b
--@ show c
CREATE STREAMING TABLE a AS SELECT s.id, x.tag, l.sku, n FROM STREAM s
  LATERAL VIEW explode(tags) x AS tag LATERAL VIEW OUTER inline(s.lines) l AS sku, n WHERE n > 1;
CREATE STREAMING TABLE b AS SELECT id, t.* FROM STREAM s LEFT JOIN LATERAL posexplode(tags) AS t(place, tag) ON true;
CREATE STREAMING TABLE c AS SELECT id, c0, half FROM STREAM s, LATERAL json_tuple(doc, 'c d', 't') AS j(c0, c1)
  LATERAL VIEW stack(2, id, id / 2, id, NULL) AS whole, half;
