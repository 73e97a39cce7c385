-- The load. Publication and slot are made behind this; log has no key, and its changes have whole rows.
CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, total numeric(12,2), note text, at timestamptz, tags text[], extra jsonb);
CREATE TABLE log (line text);
ALTER TABLE log REPLICA IDENTITY FULL;
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
INSERT INTO orders VALUES (1, 'ada', 12.50, 'has a "quote"', '2024-02-29 12:34:56.789+02', '{a,b}', '{"k": [1, 2]}'), (2, 'bob', 'NaN', NULL, 'infinity', NULL, NULL);
INSERT INTO log VALUES ('was there'), ('twice'), ('twice');
-- An insert and an update in one transaction, another one behind it.
BEGIN; INSERT INTO orders VALUES (3, 'cy', 0.10, NULL, NULL, '{}'); UPDATE orders SET total = 13 WHERE id = 1; COMMIT;
UPDATE orders SET total = 14 WHERE id = 1;
-- A changed key is a deletion of the old one and a document of the new one.
UPDATE orders SET id = 20 WHERE id = 2;
-- A deletion, of which the replica identity's columns are known.
DELETE FROM orders WHERE id = 3;
-- Without a key each document is one of its own: the log of what happened.
INSERT INTO log VALUES ('new');
UPDATE log SET line = 'was changed' WHERE line = 'was there';
DELETE FROM log WHERE ctid = (SELECT min(ctid) FROM log WHERE line = 'twice');
-- A large value.
UPDATE orders SET note = repeat('long ', 2000) WHERE id = 1;
-- It is not in PostgreSQL's stream where the update leaves it alone: the documents of a key are merged.
UPDATE orders SET total = 15 WHERE id = 1;
-- The key changes with it: the new document needs the value.
UPDATE orders SET id = 10 WHERE id = 1;
-- An update and a deletion under REPLICA IDENTITY FULL have the whole row.
ALTER TABLE orders REPLICA IDENTITY FULL;
UPDATE orders SET total = 1 WHERE id = 20;
DELETE FROM orders WHERE id = 20;
-- A new column.
ALTER TABLE orders ADD more int;
INSERT INTO orders VALUES (5, 'eve', 1, NULL, NULL, NULL, NULL, 1);
