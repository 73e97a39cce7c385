-- :n deletes, a hundred to a transaction.
CREATE TABLE item (id bigint PRIMARY KEY, k int NOT NULL, v text NOT NULL, at timestamptz NOT NULL);
INSERT INTO item
SELECT i, i % 1000, md5(i::text), timestamptz '2026-01-01 00:00Z' + i * interval '1 second'
FROM generate_series(1, :n) i;

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 0..n / 100 - 1 LOOP
        DELETE FROM item WHERE id > i * 100 AND id <= (i + 1) * 100;
        COMMIT;
    END LOOP;
END $$;
