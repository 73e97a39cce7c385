-- :n rows of about 1 KB for the first load of a large table.
CREATE TABLE large (id bigint PRIMARY KEY, k int NOT NULL, v text NOT NULL);

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 0..(n - 1) / 100000 LOOP
        INSERT INTO large SELECT r, r % 1000, repeat(md5(r::text), 30)
        FROM generate_series(i * 100000 + 1, least(n, (i + 1) * 100000)) r;
        COMMIT;
    END LOOP;
END $$;
