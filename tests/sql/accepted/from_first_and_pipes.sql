--@ show a
--@ show b
--@ show c
CREATE STREAMING TABLE a AS FROM STREAM s SELECT id WHERE id > 1;
CREATE STREAMING TABLE b AS FROM STREAM s |> WHERE s.id < 3 |> EXTEND id * 2 AS twice |> SET name = upper(name) |> DROP qty, at, day, tags, scores, address, lines, doc, op;
CREATE STREAMING TABLE c AS SELECT id, name FROM STREAM s |> AS x |> LEFT JOIN (SELECT DISTINCT id, label FROM r) y ON x.id = y.id |> SELECT x.id, name, label;
