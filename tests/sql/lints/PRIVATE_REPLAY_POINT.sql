CREATE STREAMING TABLE t AS SELECT DISTINCT id FROM STREAM read_files('landing/r', schema => 'id INT');
