-- :n transactions of the pgbench kind: ten branches and a hundred tellers are
-- updated over and over.
CREATE TABLE branch (bid int PRIMARY KEY, balance bigint NOT NULL, filler char(88));
CREATE TABLE teller (tid int PRIMARY KEY, bid int NOT NULL, balance bigint NOT NULL, filler char(84));
CREATE TABLE account (aid int PRIMARY KEY, bid int NOT NULL, balance bigint NOT NULL, filler char(84));
CREATE TABLE history (hid bigint PRIMARY KEY, tid int, bid int, aid int, delta int, mtime timestamptz);
INSERT INTO branch SELECT i, 0, '' FROM generate_series(1, 10) i;
INSERT INTO teller SELECT i, 1 + i % 10, 0, '' FROM generate_series(1, 100) i;
INSERT INTO account SELECT i, 1 + i % 10, 0, '' FROM generate_series(1, 100000) i;

CREATE PROCEDURE generate(n int) LANGUAGE plpgsql AS $$
DECLARE
    aid_ int;
    delta_ int;
BEGIN
    FOR i IN 1..n LOOP
        aid_ := 1 + (i * 7919::bigint) % 100000;
        delta_ := i % 10000 - 5000;
        UPDATE account SET balance = balance + delta_ WHERE aid = aid_;
        UPDATE teller SET balance = balance + delta_ WHERE tid = 1 + i % 100;
        UPDATE branch SET balance = balance + delta_ WHERE bid = 1 + i % 10;
        INSERT INTO history VALUES (i, 1 + i % 100, 1 + i % 10, aid_, delta_, clock_timestamp());
        COMMIT;
    END LOOP;
END $$;
