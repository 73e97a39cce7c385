-- Every kind of message and tuple of protocol version 1, on any server from 15
-- on. Each statement outside BEGIN … COMMIT is a transaction of its own.
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE SCHEMA "Odd Schema";
CREATE TABLE plain (id int PRIMARY KEY, t text, n numeric(10,2), b bool, at timestamptz, raw bytea, v varchar(20), j jsonb);
CREATE TABLE users (id int PRIMARY KEY, m mood, p positive, c pair, ms mood[], s span, r regclass);
CREATE TABLE two_keys (a int, note text, b text, PRIMARY KEY (b, a));
CREATE TABLE nothing (a int, b text);
CREATE TABLE whole (id int PRIMARY KEY, big text, small int);
CREATE TABLE by_index (pk int PRIMARY KEY, v text, k int NOT NULL UNIQUE);
CREATE TABLE toasted (id int PRIMARY KEY, big text, small int);
CREATE TABLE generated (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (a * 2) STORED, a int);
CREATE TABLE "Odd Schema"."Ta""ble" (id int PRIMARY KEY, "Co lumn" text);
CREATE TABLE zero ();
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k_key;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;

INSERT INTO plain VALUES (1, 'eins', 1.5, true, '2024-02-29 12:00:00.123456+00', '\x00ff', '', '{"a": [1, null]}');
INSERT INTO plain VALUES (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
UPDATE plain SET t = 'zwei' WHERE id = 2;
UPDATE plain SET id = 3 WHERE id = 2;
DELETE FROM plain WHERE id = 3;

INSERT INTO users VALUES (1, 'ok', 7, ROW(1, 'x'), ARRAY['sad', NULL]::mood[], '[1,2)', 'plain');
BEGIN;
INSERT INTO two_keys VALUES (1, 'n', 'x'), (2, 'n', 'y');
UPDATE two_keys SET note = NULL WHERE a = 1;
UPDATE two_keys SET a = 10 WHERE a = 2;
DELETE FROM two_keys WHERE a = 1;
COMMIT;
INSERT INTO nothing VALUES (1, 'a');
INSERT INTO whole VALUES (1, repeat('x', 3000), 1);
UPDATE whole SET small = 2;
UPDATE whole SET id = 2;
DELETE FROM whole;
INSERT INTO by_index VALUES (1, 'a', 10);
UPDATE by_index SET pk = 2;
UPDATE by_index SET k = 11;
DELETE FROM by_index;
INSERT INTO toasted VALUES (1, repeat('y', 3000), 1);
UPDATE toasted SET small = 2;
UPDATE toasted SET id = 2;
DELETE FROM toasted;
INSERT INTO generated (id, a) VALUES (1, 21);
INSERT INTO "Odd Schema"."Ta""ble" VALUES (1, E'tab\tnewline\n€');
INSERT INTO zero DEFAULT VALUES;

TRUNCATE plain;
TRUNCATE two_keys, toasted RESTART IDENTITY;
TRUNCATE whole, "Odd Schema"."Ta""ble" RESTART IDENTITY CASCADE;
BEGIN;
INSERT INTO plain (id) VALUES (1);
SAVEPOINT s;
INSERT INTO plain (id) VALUES (2);
ROLLBACK TO s;
INSERT INTO plain (id) VALUES (3);
COMMIT;
BEGIN; INSERT INTO plain (id) VALUES (4); ROLLBACK;

SELECT pg_logical_emit_message(true, 'transactional', 'hello');
SELECT pg_logical_emit_message(false, 'at once', '\x0001'::bytea);
BEGIN;
SELECT pg_logical_emit_message(false, '', '');
INSERT INTO plain (id) VALUES (5);
SELECT pg_logical_emit_message(true, 'inside', 'of a transaction');
COMMIT;

ALTER TABLE plain SET (fillfactor = 50);
INSERT INTO plain (id) VALUES (6);
ALTER TABLE plain ADD extra int;
INSERT INTO plain (id) VALUES (7);

SELECT pg_replication_origin_create('elsewhere');
SELECT pg_replication_origin_session_setup('elsewhere');
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF', '2000-01-01 00:00:01+00');
INSERT INTO plain (id) VALUES (8);
COMMIT;
SELECT pg_replication_origin_session_reset();
SELECT pg_replication_origin_drop('elsewhere');
