-- :n narrow rows for the first load.
CREATE TABLE narrow (id bigint PRIMARY KEY, k int NOT NULL, v text NOT NULL);

CREATE PROCEDURE generate(n int) LANGUAGE sql AS $$
    INSERT INTO narrow SELECT i, i % 1000, md5(i::text) FROM generate_series(1, n) i;
$$;
