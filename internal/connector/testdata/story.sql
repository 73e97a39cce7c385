-- sync: The load. Publication and slot are made behind this.
CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, total numeric(12,2), note text, at timestamptz, tags text[]);
CREATE TABLE log (line text);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
INSERT INTO orders VALUES (1, 'ada', 12.50, 'has a "quote"', '2024-02-29 12:34:56.789+02', '{a,b}'), (2, 'bob', 'NaN', NULL, 'infinity', NULL);
INSERT INTO log VALUES ('a table without a key is read whole');
-- sync: Nothing has changed. What has no key is read whole again, in a new generation.
-- rows: From here on only orders is configured. An insert and an update in one transaction, another one behind it.
BEGIN; INSERT INTO orders VALUES (3, 'cy', 0.10, NULL, NULL, '{}'); UPDATE orders SET total = 13 WHERE id = 1; COMMIT;
UPDATE orders SET total = 14 WHERE id = 1;
-- rows: A changed key is a deletion of the old one and a record of the new one.
UPDATE orders SET id = 20 WHERE id = 2;
-- rows: A deletion, of which the replica identity's columns are known.
DELETE FROM orders WHERE id = 3;
-- rows: A large value.
UPDATE orders SET note = repeat('long ', 2000) WHERE id = 1;
-- rows: It is not in PostgreSQL's stream where the update leaves it alone, and in the record all the same.
UPDATE orders SET total = 15 WHERE id = 1;
-- again: The platform has lost what came last: from the same state, the same comes again, and what is new.
INSERT INTO orders VALUES (4, 'dan');
-- rows: A deletion under REPLICA IDENTITY FULL has the whole row.
ALTER TABLE orders REPLICA IDENTITY FULL;
DELETE FROM orders WHERE id = 4;
-- rows: A new column is not in the configured catalog, and so not in the records.
ALTER TABLE orders ADD extra int;
INSERT INTO orders VALUES (5, 'eve', 1, NULL, NULL, NULL, 1);
