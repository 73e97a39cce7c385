"""One sync of the connector, with every message judged by Airbyte's own code.

    models.py BINARY CONFIG DIR

Runs spec, check, discover and read as the platform does. Each line of stdout has
to be a message for airbyte_protocol.models, strictly, and for the CDK's parser;
each record has to obey the JSON schema of its stream, and each STATE to count the
records before it. The catalog is configured by way of the models. The state of
the last run is in DIR, so the second call is the second sync.

Prints a JSON object: the number of records of each stream, and of states.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jsonschema
from airbyte_cdk.test.entrypoint_wrapper import EntrypointOutput
from airbyte_protocol.models import (
    AirbyteMessage,
    AirbyteStateMessage,
    ConfiguredAirbyteCatalog,
    ConfiguredAirbyteStream,
    DestinationSyncMode,
    SyncMode,
    Type,
)

binary, config, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
syncs = 2 if (directory / "state.json").exists() else 1


def run(*args):
    """The messages of a verb: of the models, and as the CDK has them."""
    done = subprocess.run([binary, *args], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{args[0]}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    lines = done.stdout.splitlines()
    assert lines and done.stdout.endswith("\n"), f"{args[0]}: stdout does not end with a whole line"
    messages = [AirbyteMessage.model_validate_json(line) for line in lines]
    for line, message in zip(lines, messages):
        # The models let unknown members through; there should be none.
        unknown(message, line[:300])
    parsed = EntrypointOutput(lines)
    # The parser takes a line that it can't read for a log line.
    for log in parsed.logs:
        assert not log.log.message.startswith("{"), f"{args[0]}: the CDK can't read {log.log.message[:300]}"
    assert not parsed.errors, f"{args[0]}: {parsed.errors}"
    return messages, parsed


def unknown(model, line):
    assert not getattr(model, "model_extra", None), f"the protocol does not have {model.model_extra}: {line}"
    for name in getattr(type(model), "model_fields", {}):
        value = getattr(model, name)
        if type(value).__name__ == "AirbyteStateBlob":  # holds what it likes
            continue
        for part in value if isinstance(value, list) else [value]:
            if hasattr(part, "model_fields_set"):
                unknown(part, line)


def one(parsed, kind):
    found = [m for m in parsed if m.type == kind]
    assert len(found) == 1, f"{len(found)} messages {kind}, want one"
    return found[0]


def specified():
    messages, parsed = run("spec")
    assert len(parsed.spec_messages) == 1
    schema = one(messages, Type.SPEC).spec.connectionSpecification
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(json.loads(Path(config).read_text()))


def checked():
    messages, parsed = run("check", "--config", config)
    assert len(parsed.connection_status_messages) == 1
    status = one(messages, Type.CONNECTION_STATUS).connectionStatus
    assert status.status.value == "SUCCEEDED", status


def configured():
    messages, parsed = run("discover", "--config", config)
    assert parsed.catalog.catalog.streams
    streams = []
    for stream in one(messages, Type.CATALOG).catalog.streams:
        jsonschema.Draft7Validator.check_schema(stream.json_schema)
        incremental = SyncMode.incremental in stream.supported_sync_modes
        if incremental:
            assert stream.source_defined_cursor and stream.source_defined_primary_key, stream.name
        streams.append(
            ConfiguredAirbyteStream(
                stream=stream,
                sync_mode=SyncMode.incremental if incremental else SyncMode.full_refresh,
                destination_sync_mode=DestinationSyncMode.append_dedup if incremental else DestinationSyncMode.overwrite,
                # Each sync that overwrites makes a new generation.
                generation_id=1 if incremental else syncs,
                minimum_generation_id=0 if incremental else syncs,
                sync_id=syncs,
            )
        )
    return ConfiguredAirbyteCatalog(streams=streams)


def read(catalog):
    path, state = directory / "catalog.json", directory / "state.json"
    # As the platform writes it: with every member, and null where there is none.
    path.write_text(catalog.model_dump_json())
    if not state.exists():
        state.write_text("[]")
    messages, parsed = run("read", "--config", config, "--catalog", str(path), "--state", str(state))
    schemas = {(s.stream.namespace, s.stream.name): jsonschema.Draft7Validator(s.stream.json_schema) for s in catalog.streams}
    count, since, terminal, last = Counter(), 0, set(), None
    for message in messages:
        if message.type == Type.RECORD:
            record = message.record
            assert record.stream not in terminal, f"{record.stream}: a record after its terminal status"
            schemas[record.namespace, record.stream].validate(record.data)
            count[record.stream] += 1
            since += 1
        elif message.type == Type.STATE:
            last = message.state
            assert last.type.value == "GLOBAL" and last.global_.shared_state is not None, last
            assert last.sourceStats.recordCount == since, f"a state counts {last.sourceStats.recordCount} records, there were {since}"
            since = 0
        elif message.type == Type.TRACE and message.trace.stream_status:
            status = message.trace.stream_status
            if status.status.value in ("COMPLETE", "INCOMPLETE"):
                terminal.add(status.stream_descriptor.name)
    assert last is not None, "no state"
    assert len(parsed.records) == sum(count.values())
    assert len(parsed.state_messages) == sum(m.type == Type.STATE for m in messages)
    for stream in catalog.streams:
        said = [s.value for s in parsed.get_stream_statuses(stream.stream.name)]
        assert said[0] == "STARTED" and said[-1] == "COMPLETE" and len(said) == len(set(said)), (stream.stream.name, said)
        assert "RUNNING" in said or not count[stream.stream.name], (stream.stream.name, said)
    state.write_text("[" + AirbyteStateMessage.model_validate(last).model_dump_json(by_alias=True) + "]")
    return count, len(parsed.state_messages)


specified()
checked()
records, states = read(configured())
print(json.dumps({"records": records, "states": states}))
