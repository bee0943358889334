--@ alone
--@ show t
CREATE STREAMING LIVE TABLE t AS SELECT id, label FROM
  cloud_files('landing/r', 'json', map('schema', 'id INT, label STRING', 'cloudFiles.maxFilesPerTrigger', '10'));
