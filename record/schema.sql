CREATE TABLE millrace.format (version int NOT NULL);

CREATE TABLE millrace.generation (
    job  text   PRIMARY KEY,
    last bigint NOT NULL
);
COMMENT ON TABLE millrace.generation IS
    'The last generation given to a job. Rows outlive their job, so that a generation is never used twice.';

CREATE TABLE millrace.job_state (
    job              text        PRIMARY KEY,
    format           int         NOT NULL,
    generation       bigint      NOT NULL,
    epoch            bigint      NOT NULL,
    state            text        NOT NULL,
    reason           text,
    hint             text,
    system_id        text        NOT NULL,
    timeline         int         NOT NULL,
    page_size        bigint      NOT NULL,
    segment_size     bigint      NOT NULL,
    slot             text        NOT NULL,
    publication      text        NOT NULL,
    mode             text        NOT NULL,
    consistent_point pg_lsn,
    consistent_from  pg_lsn,
    owns_slot        boolean     NOT NULL DEFAULT false,
    owns_publication boolean     NOT NULL DEFAULT false,
    table_set        bigint      NOT NULL DEFAULT 0,
    load_started     timestamptz,
    created_at       timestamptz NOT NULL DEFAULT pg_catalog.now(),
    updated_at       timestamptz NOT NULL DEFAULT pg_catalog.now()
);

CREATE TABLE millrace.progress (
    job            text   NOT NULL,
    seq            bigint NOT NULL,
    epoch          bigint NOT NULL,
    timeline       int    NOT NULL,
    last_xid       bigint,
    commit_lsn     pg_lsn,
    committed_lsn  pg_lsn NOT NULL,
    acked_lsn      pg_lsn NOT NULL,
    last_commit_ts timestamptz,
    written_at     timestamptz NOT NULL DEFAULT pg_catalog.now(),
    cursor         bytea,
    PRIMARY KEY (job, seq)
);
COMMENT ON TABLE millrace.progress IS
    'Insert-only: one row per target transaction; the newest holds the checkpoint, old ones are deleted now and then.';

CREATE TABLE millrace.job_table (
    job         text    NOT NULL,
    oid         bigint  NOT NULL,
    schema_name text    NOT NULL,
    table_name  text    NOT NULL,
    target_oid  bigint  NOT NULL DEFAULT 0,
    filenode    bigint  NOT NULL DEFAULT 0,
    shape       text    NOT NULL DEFAULT '',
    copied      boolean NOT NULL DEFAULT false,
    adding      boolean NOT NULL DEFAULT false,
    rows        bigint  NOT NULL DEFAULT 0,
    bytes       bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (job, oid)
);

CREATE TABLE millrace.chunk (
    job   text   NOT NULL,
    oid   bigint NOT NULL,
    part  int    NOT NULL,
    mark  text,
    rows  bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (job, oid, part)
);
COMMENT ON TABLE millrace.chunk IS
    'What is copied of tables that are not complete: the parts of one under the exported snapshot (part >= 0), where the load of one beside the stream stands (part -1, mark), and that one lacks its foreign keys until it is loaded (part -2).';

CREATE TABLE millrace.prepared (
    job         text   NOT NULL,
    gid         text   NOT NULL,
    prepare_lsn pg_lsn NOT NULL,
    PRIMARY KEY (job, gid)
);
COMMENT ON TABLE millrace.prepared IS
    'One row per transaction that was prepared here and committed, until the progress row of its commit is there.';

CREATE TABLE millrace.runtime (
    job          text        NOT NULL,
    instance     text        NOT NULL,
    host         text        NOT NULL,
    pid          int         NOT NULL,
    version      text        NOT NULL,
    http         text,
    condition    text,
    started_at   timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    PRIMARY KEY (job, instance)
);

CREATE VIEW millrace.job AS
SELECT s.job, s.format, s.generation, s.epoch, s.state, s.reason, s.hint, s.system_id,
       coalesce(p.timeline, s.timeline) AS timeline, s.slot, s.publication,
       ARRAY(SELECT CASE WHEN t.schema_name ~ '^[a-z_][a-z0-9_$]*$' THEN t.schema_name
                         ELSE '"' || pg_catalog.replace(t.schema_name, '"', '""') || '"' END
                    || '.' ||
                    CASE WHEN t.table_name ~ '^[a-z_][a-z0-9_$]*$' THEN t.table_name
                         ELSE '"' || pg_catalog.replace(t.table_name, '"', '""') || '"' END
             FROM millrace.job_table t WHERE t.job = s.job
             ORDER BY t.schema_name, t.table_name) AS tables,
       s.consistent_point, s.consistent_from, p.commit_lsn, p.committed_lsn, p.acked_lsn, p.cursor,
       p.last_xid, p.last_commit_ts, s.owns_slot, s.owns_publication, s.created_at,
       greatest(s.updated_at, p.written_at) AS updated_at
FROM millrace.job_state s
LEFT JOIN LATERAL (
    SELECT q.* FROM millrace.progress q WHERE q.job = s.job ORDER BY q.seq DESC LIMIT 1
) p ON true;

CREATE FUNCTION millrace.wait_for(job text, token text, timeout interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_variable
DECLARE
    state    record;
    parts    text[];
    wanted   pg_lsn;
    line     int;
    deadline timestamptz := clock_timestamp() + coalesce(timeout, interval '30 seconds');
    pause    double precision := 0.001;
    rest     double precision;
    held     boolean := false;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'millrace.wait_for needs the isolation level read committed'
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Under a stricter level the snapshot never sees progress. Call it as a statement of its own, outside such a transaction.';
    END IF;
    IF token ~ '^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$' THEN
        wanted := token::pg_lsn;
    ELSIF token ~ '^[0-9]{1,20}:[0-9]{1,9}:[0-9]{1,18}:[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$' THEN
        parts := string_to_array(token, ':');
        wanted := parts[4]::pg_lsn;
        line := parts[2]::int;
    ELSE
        RAISE EXCEPTION 'malformed token "%"', token
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A token is an LSN such as 16/B374D848, or SYSTEM:TIMELINE:GENERATION:LSN. Tokens of the form xid=N are for /wait only.';
    END IF;
    LOOP
        SELECT s.generation, s.system_id, s.state, s.hint, s.consistent_from, s.page_size, s.segment_size,
               coalesce(p.timeline, s.timeline) AS timeline, p.acked_lsn
          INTO state
          FROM millrace.job_state s
          LEFT JOIN LATERAL (SELECT q.timeline, q.acked_lsn FROM millrace.progress q
                              WHERE q.job = s.job ORDER BY q.seq DESC LIMIT 1) p ON true
         WHERE s.job = wait_for.job;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no such job: "%"', job USING ERRCODE = 'undefined_object';
        END IF;
        IF state.state = 'resync_required' THEN
            RAISE EXCEPTION 'job "%" needs a new first load (resync_required)', job
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = coalesce(state.hint, '');
        END IF;
        IF parts IS NOT NULL AND (parts[1] <> state.system_id OR parts[3]::bigint <> state.generation) THEN
            RAISE EXCEPTION 'the token is of system % generation %, job "%" follows system % generation %',
                parts[1], parts[3], job, state.system_id, state.generation
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF pause = 0.001 THEN -- the first round: insert positions can point behind an unwritten page header
            IF (wanted - '0/0'::pg_lsn) % state.segment_size = 40 THEN
                wanted := wanted - 40::numeric;
            ELSIF (wanted - '0/0'::pg_lsn) % state.page_size = 24 THEN
                wanted := wanted - 24::numeric;
            END IF;
        END IF;
        held := state.consistent_from IS NOT NULL AND state.acked_lsn >= wanted
                AND (line IS NULL OR line = state.timeline);
        IF line < state.timeline THEN
            -- The newest row of each earlier timeline is kept: what it holds was applied before the switch.
            held := state.consistent_from IS NOT NULL AND EXISTS (
                SELECT FROM millrace.progress q
                 WHERE q.job = wait_for.job AND q.timeline <= line AND q.acked_lsn >= wanted);
            IF NOT held THEN
                RAISE EXCEPTION 'position % of timeline % is not on the history that job "%" follows (timeline %)',
                    wanted, line, job, state.timeline USING ERRCODE = 'invalid_parameter_value';
            END IF;
        END IF;
        IF held THEN
            -- What this snapshot sees may not be flushed, or not be at a synchronous standby. The commit of this
            -- transaction lies behind it, and waits for both once the transaction has written something. A
            -- standby has only what was flushed.
            IF NOT pg_is_in_recovery() THEN
                PERFORM pg_logical_emit_message(true, 'millrace', '');
                IF current_setting('synchronous_commit') IN ('off', 'local') THEN
                    PERFORM set_config('synchronous_commit', 'on', true);
                END IF;
            END IF;
            RETURN true;
        END IF;
        rest := extract(epoch FROM deadline - clock_timestamp());
        IF rest <= 0 THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(least(pause, rest));
        pause := least(pause * 1.5, 0.1);
    END LOOP;
END
$function$;

INSERT INTO millrace.format VALUES (1);
