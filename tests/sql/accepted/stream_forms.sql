--@ show a
--@ show b
--@ show c
CREATE STREAMING TABLE a AS SELECT id FROM STREAM s;
CREATE STREAMING TABLE b AS SELECT x.id FROM STREAM(default.s) AS x;
CREATE STREAMING TABLE c AS SELECT id FROM STREAM(read_files('landing/r', format => 'json', schema => 'id INT'));
