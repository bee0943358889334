--@ alone
--@ show t
CREATE STREAMING TABLE t AS SELECT id, regexp_extract(input_file_name(), '[^/]+$', 0) AS name,
  input_file_name() = _metadata.file_path AS same FROM STREAM read_files('landing/r', format => 'json', schema => 'id INT, label STRING');
