--@ show `my t`
/* outer /* nested ; */ still */ CREATE STREAMING TABLE `my t` -- to the end; of the line
AS SELECT id AS `a b`, /* ; */ name `select` FROM STREAM `s`; -- the last one
/* nothing */ ;
