--@ show t
CREATE STREAMING TABLE t AS
WITH c AS (SELECT id, name FROM STREAM s), d (key, called) AS (SELECT * FROM c WHERE id > 1)
SELECT d.KEY, x.Called FROM d JOIN (SELECT key, called FROM d) AS x USING (key);
