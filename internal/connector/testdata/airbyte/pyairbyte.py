"""One PyAirbyte sync of the connector into DuckDB.

    pyairbyte.py BINARY CONFIG DIR

The cache is in DIR, so the second call goes on where the first one ended. Prints a
JSON object: the number of records that the sync had, and the rows of each table as
text, in order, with null where there is none.
"""

import json
import os
import sys
from pathlib import Path

os.environ["AIRBYTE_OFFLINE_MODE"] = "1"  # no look-up in the registry, which does not know the connector
os.environ["DO_NOT_TRACK"] = "1"
os.environ["AIRBYTE_LOGGING_ROOT"] = sys.argv[3]
binary, config, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
stdout = os.dup(1)
os.dup2(2, 1)  # its progress is for people
os.chdir(directory)

import airbyte  # noqa: E402
import duckdb  # noqa: E402

source = airbyte.get_source(
    "source-postgres-millrace",
    config=json.loads(Path(config).read_text()),
    local_executable=binary,
    install_if_missing=False,
)
source.check()
source.select_all_streams()
cache = airbyte.DuckDBCache(db_path=directory / "cache.duckdb", schema_name="shop")
result = source.read(cache=cache)
names = list(result.streams)
records = result.processed_records
cache.close()

tables = {}
with duckdb.connect(str(directory / "cache.duckdb")) as db:
    db.execute("SET TimeZone = 'UTC'")
    for name in names:
        columns = [c for (c,) in db.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'shop' AND table_name = ?", [name]
        ).fetchall() if not c.startswith("_airbyte_")]
        text = ", ".join(f'"{c}"::VARCHAR' for c in columns)
        tables[name] = [dict(zip(columns, row)) for row in db.execute(f'SELECT {text} FROM shop."{name}"').fetchall()]
with os.fdopen(stdout, "w") as out:
    json.dump({"records": records, "tables": tables}, out)
