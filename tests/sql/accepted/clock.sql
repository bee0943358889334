--@ show t
--@ show u
CREATE STREAMING TABLE t (CONSTRAINT past EXPECT (at < current_timestamp()) ON VIOLATION QUARANTINE) AS
SELECT id, at, day, current_date() AS seen FROM STREAM s;
CREATE STREAMING TABLE u AS SELECT id, CASE WHEN day + INTERVAL 1 YEAR < current_date() THEN 'old' END AS age FROM STREAM t;
