--@ show a
--@ show b
--@ show c
CREATE STREAMING TABLE a AS SELECT * EXCEPT (qty, at, day, tags, scores, address, lines, doc, op), id + 1 AS next FROM STREAM s;
CREATE STREAMING TABLE b AS SELECT x.* EXCEPT (label) FROM STREAM r AS x;
CREATE STREAMING TABLE c AS SELECT id, address.* FROM STREAM s;
