-- Definitions of every kind that a table can need, and some that it doesn't.
CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE SCHEMA shop;
CREATE SCHEMA "We.ird";
CREATE SCHEMA unused;

CREATE TYPE shop.mood AS ENUM ('sad', 'it''s ok', 'happy', 'a\b');
CREATE TYPE shop.address AS (street text, zip varchar(10), mood shop.mood);
CREATE TYPE shop.span AS RANGE (subtype = float8);
CREATE COLLATION shop.plain (provider = libc, locale = 'C');
CREATE DOMAIN shop.positive AS integer DEFAULT 1 CONSTRAINT above_zero CHECK (VALUE > 0);
CREATE DOMAIN shop.email AS citext CHECK (VALUE ~ '@');
CREATE SEQUENCE shop.numbers START 1000 INCREMENT 5;

CREATE FUNCTION shop.helper(v integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $fn$
BEGIN
	-- a body that looks like a dump; it ends with $$; and 'a quote
	RETURN v * 2;
END $fn$;
CREATE FUNCTION shop.doubled(v integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS
'BEGIN RETURN shop.helper(v); END';
CREATE FUNCTION shop.norm(t text) RETURNS text LANGUAGE sql IMMUTABLE RETURN lower(t);
CREATE FUNCTION shop.code() RETURNS text LANGUAGE sql VOLATILE BEGIN ATOMIC
	SELECT 'c' || 1;
	SELECT 'c' || nextval('shop.numbers');
END;
CREATE FUNCTION shop.valid(z text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT length(z) < 11 $$;
CREATE FUNCTION unused.nothing() RETURNS int LANGUAGE sql AS 'SELECT 1';
COMMENT ON TYPE shop.mood IS 'how it''s going';

CREATE TABLE shop.customer (
	id        integer GENERATED ALWAYS AS IDENTITY (START 10) PRIMARY KEY,
	name      text COLLATE shop.plain NOT NULL,
	email     shop.email UNIQUE,
	mood      shop.mood DEFAULT 'happy',
	home      shop.address,
	attrs     hstore DEFAULT ''::hstore,
	stay      shop.span,
	level     shop.positive,
	code      text DEFAULT shop.code(),
	twice     integer GENERATED ALWAYS AS (shop.doubled(level)) STORED,
	best      integer,
	gone      text,
	CONSTRAINT zip_ok CHECK (shop.valid((home).zip))
);
ALTER TABLE shop.customer DROP COLUMN gone;
CREATE INDEX customer_norm ON shop.customer (shop.norm(name)) WHERE level > 1;
CREATE STATISTICS shop.customer_stats (dependencies) ON level, best FROM shop.customer;
COMMENT ON TABLE shop.customer IS 'who buys';
COMMENT ON COLUMN shop.customer.name IS 'the "name"';

CREATE TABLE shop."order" (
	id       bigserial PRIMARY KEY,
	customer integer NOT NULL REFERENCES shop.customer ON DELETE CASCADE,
	note     text,
	placed   timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE shop."order" REPLICA IDENTITY FULL;
-- a cycle of foreign keys
CREATE TABLE shop.item (id integer PRIMARY KEY, parent integer REFERENCES shop.item DEFERRABLE INITIALLY DEFERRED,
	owner integer REFERENCES shop.customer);
ALTER TABLE shop.customer ADD CONSTRAINT best_item FOREIGN KEY (best) REFERENCES shop.item;
-- a reference to a table that is not copied
CREATE TABLE unused.target (id integer PRIMARY KEY);
ALTER TABLE shop.item ADD COLUMN elsewhere integer REFERENCES unused.target;
ALTER TABLE shop.item ADD CONSTRAINT checked_later CHECK (id <> 7) NOT VALID;

CREATE TABLE shop.event (
	tenant integer NOT NULL, at timestamptz NOT NULL, body jsonb, customer integer REFERENCES shop.customer,
	PRIMARY KEY (tenant, at)
) PARTITION BY RANGE (at);
CREATE INDEX event_body ON shop.event USING gin (body);
CREATE TABLE shop.event_2025 PARTITION OF shop.event FOR VALUES FROM ('2025-01-01') TO ('2026-01-01') PARTITION BY LIST (tenant);
CREATE TABLE shop.event_2025_1 PARTITION OF shop.event_2025 FOR VALUES IN (1);
CREATE TABLE shop.event_2025_rest PARTITION OF shop.event_2025 DEFAULT;
CREATE TABLE shop.event_2026 PARTITION OF shop.event FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');

CREATE TABLE shop.base (id integer PRIMARY KEY, a text);
CREATE TABLE shop.child (b text) INHERITS (shop.base);

CREATE TABLE "We.ird"."t""a.b c" ("c""1" integer, "Select" text, "ü$x" shop.mood[]);
CREATE UNIQUE INDEX "i ""x" ON "We.ird"."t""a.b c" ("c""1");
ALTER TABLE "We.ird"."t""a.b c" ALTER "c""1" SET NOT NULL;
ALTER TABLE "We.ird"."t""a.b c" REPLICA IDENTITY USING INDEX "i ""x";
CREATE TABLE shop.none ();
CREATE TABLE shop.keyless (a integer, b text);
CREATE TABLE shop.slotted (id integer, r int4range, EXCLUDE USING gist (r WITH &&));
CREATE TABLE shop.later (id integer PRIMARY KEY, pos integer UNIQUE DEFERRABLE INITIALLY IMMEDIATE);

COMMENT ON CONSTRAINT best_item ON shop.customer IS 'a favourite';
COMMENT ON INDEX shop.customer_norm IS 'by name';
COMMENT ON CONSTRAINT zip_ok ON shop.customer IS 'ten';

-- what must not come along
CREATE VIEW shop.names AS SELECT name FROM shop.customer;
CREATE MATERIALIZED VIEW shop.counts AS SELECT count(*) FROM shop.customer;
CREATE FUNCTION shop.audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER audit BEFORE INSERT ON shop.customer FOR EACH ROW EXECUTE FUNCTION shop.audit();
CREATE RULE nothing AS ON INSERT TO shop.keyless WHERE new.a = -1 DO INSTEAD NOTHING;
CREATE TABLE unused.big (id integer);
CREATE PUBLICATION everything FOR ALL TABLES;
