-- :n transactions of three rows: an insert, an update and a delete.
CREATE TABLE item (
    id bigint PRIMARY KEY,
    k int NOT NULL,
    v text NOT NULL,
    amount numeric(12,2) NOT NULL,
    at timestamptz NOT NULL
);
INSERT INTO item
SELECT i, i % 1000, md5(i::text), (i % 100000) / 100.0, timestamptz '2026-01-01 00:00Z' + i * interval '1 second'
FROM generate_series(1, 2 * :n) i;

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..n LOOP
        INSERT INTO item VALUES (2 * n + i, i % 1000, md5(i::text), (i % 100000) / 100.0, clock_timestamp());
        UPDATE item SET k = k + 1, amount = amount + 1, at = clock_timestamp() WHERE id = n + 1 + (i * 7919::bigint) % n;
        DELETE FROM item WHERE id = i;
        COMMIT;
    END LOOP;
END $$;
