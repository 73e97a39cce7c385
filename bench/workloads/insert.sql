-- One transaction that inserts :n rows.
CREATE TABLE item (id bigint PRIMARY KEY, k int NOT NULL, v text NOT NULL, at timestamptz NOT NULL);

CREATE PROCEDURE generate(n int) LANGUAGE sql AS $$
    INSERT INTO item
    SELECT i, i % 1000, md5(i::text), timestamptz '2026-01-01 00:00Z' + i * interval '1 second'
    FROM generate_series(1, n) i;
$$;
