--@ alone
CREATE STREAMING TABLE t AS SELECT * FROM cloud_files('landing/r');
--@ next
CREATE STREAMING TABLE t AS SELECT * FROM cloud_files('landing/r', 'json', map('schema', 'id INT', 'schema'));
--@ next
CREATE STREAMING TABLE t AS SELECT * FROM cloud_files('landing/r', 'json', 'schema', 'id INT');
--@ next
CREATE STREAMING TABLE t AS SELECT * FROM cloud_files('landing/r', 'json', map('schema', 'id INTT'));
--@ next
CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files(format => 'json');
--@ next
CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing/nothing', format => 'json');
