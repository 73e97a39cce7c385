-- One transaction that updates :n rows.
CREATE TABLE item (id bigint PRIMARY KEY, k int NOT NULL, v text NOT NULL, at timestamptz NOT NULL);
INSERT INTO item
SELECT i, i % 1000, md5(i::text), timestamptz '2026-01-01 00:00Z' + i * interval '1 second'
FROM generate_series(1, :n) i;

CREATE PROCEDURE generate(n int) LANGUAGE sql AS $$
    UPDATE item SET k = k + 1, at = at + interval '1 hour';
$$;
