CREATE MATERIALIZED VIEW t AS SELECT id, at > current_timestamp() AS ahead FROM s;
