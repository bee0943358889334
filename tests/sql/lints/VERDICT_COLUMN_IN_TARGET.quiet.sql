CREATE VIEW tagged AS SELECT s.*, array_except(array(CASE WHEN qty < 0 THEN 'negative' END, CASE WHEN name IS NULL THEN 'unnamed' END), array(CAST(NULL AS STRING))) AS critical FROM STREAM s;
CREATE VIEW clean AS SELECT * EXCEPT (critical) FROM STREAM tagged WHERE size(critical) = 0;
CREATE STREAMING TABLE t FLOW AUTO CDC FROM STREAM clean KEYS (id) SEQUENCE BY at;
