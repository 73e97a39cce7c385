-- Protocol versions 2 to 4: transactions that are sent while they are open, and
-- prepared ones. The variable rows says how many rows outgrow the server's
-- memory, so that it sends what it has.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE other (id int PRIMARY KEY);

BEGIN;
INSERT INTO t SELECT i, 'kept' FROM generate_series(1, :rows) i;
SAVEPOINT a;
INSERT INTO t SELECT i, 'dropped with a' FROM generate_series(1001, 1000 + :rows) i;
SAVEPOINT b;
INSERT INTO t SELECT i, 'dropped with b, within a' FROM generate_series(2001, 2000 + :rows) i;
ROLLBACK TO b;
INSERT INTO other SELECT i FROM generate_series(1, :rows) i;
ROLLBACK TO a;
INSERT INTO t SELECT i, 'kept' FROM generate_series(3001, 3000 + :rows) i;
SAVEPOINT c;
ALTER TABLE t ADD w int;
INSERT INTO t SELECT i, 'of a shape that is rolled back', i FROM generate_series(4001, 4000 + :rows) i;
ROLLBACK TO c;
UPDATE t SET v = 'updated' WHERE id = 1;
TRUNCATE other;
SELECT pg_logical_emit_message(true, 'in', 'transaction');
COMMIT;

BEGIN;
INSERT INTO t SELECT i, 'whole' FROM generate_series(5001, 5000 + :rows) i;
ROLLBACK;

BEGIN;
INSERT INTO t VALUES (6001, 'prepared');
PREPARE TRANSACTION 'small one';
COMMIT PREPARED 'small one';

BEGIN;
INSERT INTO t SELECT i, 'prepared' FROM generate_series(7001, 7000 + :rows) i;
PREPARE TRANSACTION 'large one';
INSERT INTO other VALUES (1);
COMMIT PREPARED 'large one';

BEGIN;
INSERT INTO t SELECT i, 'prepared' FROM generate_series(8001, 8000 + :rows) i;
PREPARE TRANSACTION 'rolled back';
ROLLBACK PREPARED 'rolled back';

SELECT pg_replication_origin_create('elsewhere');
SELECT pg_replication_origin_session_setup('elsewhere');
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF', '2000-01-01 00:00:01+00');
INSERT INTO t SELECT i, 'from elsewhere' FROM generate_series(9001, 9000 + :rows) i;
COMMIT;
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF', '2000-01-01 00:00:01+00');
INSERT INTO t VALUES (10001, 'prepared elsewhere');
PREPARE TRANSACTION 'elsewhere';
COMMIT PREPARED 'elsewhere';
SELECT pg_replication_origin_session_reset();
SELECT pg_replication_origin_drop('elsewhere');
