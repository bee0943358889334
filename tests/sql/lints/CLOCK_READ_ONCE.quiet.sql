CREATE MATERIALIZED VIEW t AS SELECT id, at > current_timestamp() AS ahead FROM s;
CREATE MATERIALIZED VIEW u AS SELECT id FROM (SELECT *, current_date() AS today FROM s) WHERE CAST(at AS DATE) <= today;
