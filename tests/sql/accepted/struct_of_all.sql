--@ show t
--@ show u
CREATE STREAMING TABLE t AS SELECT id, to_json(struct(*)) AS all_of_it, to_json(struct(x.id, x.label AS l)) AS some FROM STREAM r AS x;
CREATE STREAMING TABLE u AS SELECT id, address:city AS city, try_parse_json(doc):a.b AS b, schema_of_variant(try_parse_json(doc)) AS shape,
  struct(s.*, 1 AS one).one AS one FROM STREAM s;
