--@ show t
CREATE STREAMING TABLE t (
  id INT, day DATE,
  month INT GENERATED ALWAYS AS (month(day)),
  tag STRING GENERATED ALWAYS AS (concat('n', id))
) AS SELECT id, day, 'n' || id AS tag FROM STREAM s;
