CREATE STREAMING TABLE t AS SELECT id FROM STREAM read_files('landing/r', schema => 'id INT');
