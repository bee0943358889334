CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (at < current_timestamp()) ON VIOLATION QUARANTINE) AS
SELECT * FROM STREAM read_files('landing/s', schema => 'id INT, at TIMESTAMP');
