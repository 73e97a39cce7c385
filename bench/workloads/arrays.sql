-- :n rows with array columns, half inserted and half updated, ten to a transaction.
CREATE TABLE series (
    id bigint PRIMARY KEY, points int[] NOT NULL, labels text[], grid float8[], amounts numeric[]
);
CREATE PROCEDURE fill(first bigint, last bigint) LANGUAGE sql AS $$
    INSERT INTO series
    SELECT i, ARRAY[i, i + 1, i + 2, i + 3]::int[], ARRAY['a' || i, NULL, 'c "x"'], ARRAY[[i / 3.0, 1], [2, i]],
        CASE WHEN i % 3 > 0 THEN ARRAY[i / 100.0, i] END
    FROM generate_series(first, last) i;
$$;
CALL fill(1, :n);

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 0..n / 10 - 1 LOOP
        CALL fill(n + i * 5 + 1, n + i * 5 + 5);
        UPDATE series SET points = points || i, labels = ARRAY['new', i::text] WHERE id BETWEEN i * 5 + 1 AND i * 5 + 5;
        COMMIT;
    END LOOP;
END $$;
