--@ show t
CREATE STREAMING TABLE t AS SELECT id, transform(tags, x -> upper(x)) AS a, filter(lines, l -> l.n > 1) AS b,
  exists(tags, x -> x = 'b') AS c, aggregate(lines, 0, (acc, l) -> acc + l.n) AS d, transform(tags, (x, i) -> concat(x, i)) AS e,
  map_filter(scores, (k, v) -> v > 1) AS f, aggregate(lines, 0, (acc, l) -> acc + l.n, acc -> acc * 10) AS g FROM STREAM s;
