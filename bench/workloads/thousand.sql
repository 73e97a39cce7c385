-- :n transactions of two rows, spread over a thousand tables.
DO $$
BEGIN
    FOR t IN 0..999 LOOP
        EXECUTE format('CREATE TABLE t%s (id bigint PRIMARY KEY, k int NOT NULL, v text NOT NULL)', t);
        EXECUTE format('INSERT INTO t%s SELECT -i, i, md5(i::text) FROM generate_series(1, 20) i', t);
    END LOOP;
END $$;

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..n LOOP
        EXECUTE format('INSERT INTO t%s VALUES ($1, $2, md5($3))', i * 7919::bigint % 1000) USING i::bigint, i % 1000, i::text;
        EXECUTE format('UPDATE t%s SET k = k + 1 WHERE id = -$1', (i * 37::bigint) % 1000) USING 1 + i % 20;
        COMMIT;
    END LOOP;
END $$;
