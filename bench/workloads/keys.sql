-- :n transactions of three rows in tables with a composite key and a uuid key.
CREATE TABLE event (tenant int, region varchar(8), no bigint, k int NOT NULL, v text NOT NULL, PRIMARY KEY (tenant, region, no));
CREATE TABLE person (id uuid PRIMARY KEY, name text NOT NULL, visits int NOT NULL);
INSERT INTO event SELECT i % 50, 'r' || i % 7, i, i % 1000, md5(i::text) FROM generate_series(1, :n) i;
INSERT INTO person SELECT md5(i::text)::uuid, 'person ' || i, 0 FROM generate_series(1, :n) i;

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
DECLARE
    j bigint;
BEGIN
    FOR i IN 1..n LOOP
        j := 1 + (i * 7919::bigint) % n;
        INSERT INTO event VALUES (i % 50, 'r' || i % 7, n + i, i % 1000, md5(i::text));
        UPDATE event SET k = k + 1 WHERE tenant = j % 50 AND region = 'r' || j % 7 AND no = j;
        UPDATE person SET visits = visits + 1 WHERE id = md5(i::text)::uuid;
        COMMIT;
    END LOOP;
END $$;
