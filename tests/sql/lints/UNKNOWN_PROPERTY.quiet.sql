CREATE STREAMING TABLE t TBLPROPERTIES ('pipelines.reset.allowed' = 'false', 'own.key' = '1') AS SELECT id FROM STREAM s;
