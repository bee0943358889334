--@ show a
--@ show b
--@ show c
--@ show d
--@ show e
CREATE STREAMING TABLE a AS SELECT id, explode(tags) AS tag FROM STREAM s WHERE id < 9;
CREATE STREAMING TABLE b AS SELECT id, explode_outer(tags) FROM STREAM s;
CREATE STREAMING TABLE c AS SELECT posexplode(tags) AS (place, tag), id FROM STREAM s;
CREATE STREAMING TABLE d AS SELECT *, explode(scores) AS (k, v) FROM (SELECT id, scores FROM STREAM s);
CREATE STREAMING TABLE e AS SELECT id, inline_outer(lines) FROM STREAM s;
