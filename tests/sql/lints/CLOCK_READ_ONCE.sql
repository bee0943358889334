CREATE MATERIALIZED VIEW t AS SELECT id, greatest(at, current_timestamp()) = at AS ahead FROM s;
