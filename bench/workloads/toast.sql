-- Documents of about 7 KB, stored out of line: :n inserts, and twice as many
-- updates that leave the document as it is, thirty rows to a transaction.
CREATE TABLE doc (id bigint PRIMARY KEY, version int NOT NULL, body jsonb NOT NULL);
CREATE FUNCTION body(i bigint) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('id', i, 'text', string_agg(encode(sha512((i || ':' || g)::bytea), 'base64'), ''))
    FROM generate_series(1, 80) g;
$$;
INSERT INTO doc SELECT i, 0, body(i) FROM generate_series(1, 2000) i;

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 0..n / 10 - 1 LOOP
        INSERT INTO doc SELECT r, 0, body(r) FROM generate_series(2001 + i * 10::bigint, 2010 + i * 10) r;
        UPDATE doc SET version = version + 1 WHERE id BETWEEN 1 + i % 99 * 20 AND 20 + i % 99 * 20;
        COMMIT;
    END LOOP;
END $$;
