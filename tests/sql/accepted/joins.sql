--@ show a
--@ show b
--@ show c
--@ show d
CREATE VIEW known AS SELECT DISTINCT id, label FROM r;
CREATE STREAMING TABLE a AS SELECT s.id, k.label FROM STREAM s LEFT JOIN known k ON s.id = k.id;
CREATE STREAMING TABLE b AS SELECT id FROM STREAM s SEMI JOIN known USING (id);
CREATE STREAMING TABLE c AS SELECT s.id FROM STREAM s ANTI JOIN known k ON s.id <=> k.id;
CREATE STREAMING TABLE d AS SELECT id FROM STREAM s WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.id = s.id) AND id IN (SELECT id FROM s);
--@ show e
--@ show f
--@ show g
CREATE STREAMING TABLE e AS SELECT s.id, k.label FROM known k RIGHT JOIN STREAM s ON s.id = k.id;
CREATE STREAMING TABLE f AS SELECT s.id, k.label FROM STREAM s INNER JOIN known k ON s.id = k.id AND s.name <> k.label;
CREATE STREAMING TABLE g AS SELECT name, label FROM STREAM s NATURAL JOIN known;
