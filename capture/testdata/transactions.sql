CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, v text);
CREATE TABLE serial (id int GENERATED ALWAYS AS IDENTITY, v text);
CREATE SCHEMA excluded;
CREATE TABLE excluded.x (id int PRIMARY KEY);
CREATE TABLE excluded.y (id int PRIMARY KEY);
-- stream
BEGIN;
INSERT INTO t VALUES (1, 'a');
SAVEPOINT one;
INSERT INTO t VALUES (2, 'lost');
SAVEPOINT two;
INSERT INTO t VALUES (3, 'lost');
RELEASE two;
ROLLBACK TO one;
SAVEPOINT three;
INSERT INTO t VALUES (4, 'kept');
RELEASE three;
UPDATE t SET v = 'b' WHERE id = 1;
COMMIT;
BEGIN; INSERT INTO t VALUES (5, 'rolled back'); ROLLBACK;
BEGIN; COMMIT;
BEGIN;
INSERT INTO t VALUES (6, 'before');
TRUNCATE t, excluded.x, serial RESTART IDENTITY;
INSERT INTO t VALUES (6, 'after');
SAVEPOINT s;
TRUNCATE u;
ROLLBACK TO s;
COMMIT;
TRUNCATE t, u CASCADE;
TRUNCATE excluded.x;
INSERT INTO excluded.x VALUES (1);
BEGIN;
INSERT INTO excluded.x VALUES (2);
INSERT INTO t VALUES (7, 'the second change');
DELETE FROM excluded.y;
COMMIT;
SELECT pg_logical_emit_message(true, 'alone', 'in its transaction');
SELECT pg_logical_emit_message(false, 'at once', 'anywhere');
BEGIN;
SELECT pg_logical_emit_message(true, 'with', 'a row');
INSERT INTO u VALUES (1, 'with messages');
SELECT pg_logical_emit_message(false, 'inside', 'but not of it');
COMMIT;
SELECT pg_replication_origin_create('elsewhere');
SELECT pg_replication_origin_session_setup('elsewhere');
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF', '2001-02-03 04:05:06.789+00');
INSERT INTO u VALUES (2, 'from elsewhere');
COMMIT;
SELECT pg_replication_origin_session_reset();
SELECT pg_replication_origin_drop('elsewhere');
COPY u FROM stdin;
10	one LSN
11	for all
12	of them
\.
