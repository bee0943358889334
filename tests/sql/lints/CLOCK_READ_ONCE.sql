CREATE MATERIALIZED VIEW t AS SELECT id, greatest(at, current_timestamp()) = at AS ahead FROM s;
CREATE MATERIALIZED VIEW u AS SELECT id FROM (SELECT *, current_timestamp() AS moment FROM s) WHERE greatest(at, moment) = at;
