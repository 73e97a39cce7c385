-- :n inserts of thirty columns of mixed types, ten to a transaction.
CREATE TABLE wide (
    id bigint PRIMARY KEY,
    i1 int, i2 int, i3 int, i4 int, s1 smallint, s2 smallint, b1 bigint, b2 bigint,
    n1 numeric(12,2), n2 numeric(20,6), f1 float8, f2 float4, o1 boolean, o2 boolean,
    t1 text, t2 text, t3 varchar(40), t4 varchar(40), c1 char(10), y1 bytea, y2 bytea,
    d1 date, d2 date, m1 timestamp, m2 timestamptz, v1 interval, u1 uuid, j1 jsonb, p1 inet
);

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 0..n / 10 - 1 LOOP
        INSERT INTO wide
        SELECT r, r % 7, r % 11, CASE WHEN r % 3 = 0 THEN r END, r, r % 100, r % 200, r * 1000003, CASE WHEN r % 5 > 0 THEN r END,
            r / 100.0, r / 7.0, r / 3.0, r / 9.0, r % 2 = 0, CASE WHEN r % 4 > 0 THEN r % 3 = 0 END,
            md5(r::text), 'row ' || r, 'name ' || r, CASE WHEN r % 2 = 0 THEN 'note' END, 'c' || r % 1000,
            decode(md5(r::text), 'hex'), NULL, date '2026-01-01' + (r % 365)::int, NULL,
            timestamp '2026-01-01' + r * interval '1 second', timestamptz '2026-01-01 00:00Z' + r * interval '1 ms',
            r * interval '1 minute', md5(r::text)::uuid, jsonb_build_object('id', r, 'tags', jsonb_build_array(r % 5, 'x')),
            '10.0.0.1'::inet + r % 65536
        FROM generate_series(i * 10 + 1::bigint, i * 10 + 10) r;
        COMMIT;
    END LOOP;
END $$;
