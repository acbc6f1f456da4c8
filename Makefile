# Everything that a person or CI does here. The logic is in tools/, verify/ and bench/; `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
READY := .venv/ready
COUNT := 1000
SEED := 20261121
SECONDS := 60
MINUTES := 10
AGENTS := 1000
TABLES := 100
ROUNDS := 10
# Compiled modules are kept in .cache. Tests start Python hundreds of times; without them each start compiles everything.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/bytecode
unexport PYTHONDONTWRITEBYTECODE
# One more than there are cores, and four at most: tests of real servers wait for them a good part of the time.
WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -ge 3 ] && echo 4 || echo $$((n + 1)))

.PHONY: help setup java jdk jars class-archive postgres chromium vendor screenshots demo check quick test verify matrix verify-docs differential mutations walkthrough reference experiments hostile soak torture bench-clients bench-commit bench-day bench-gate bench-idle bench-intents bench-isolation bench-ledger bench-mediator bench-orphans bench-page bench-patterns bench-rewriters bench-rows bench-audit bench-simulator bench-transport never-weaker exchanges scan-planning gate-oracle gate-mutations spark-merge reproduce rck parquet-fixtures lock format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## a virtual environment in .venv with exactly what requirements.lock names
	@echo "Icetower is in .venv. Next:  . .venv/bin/activate  and then  icetower init  (a tower in front of your catalog),"
	@echo "or  icetower init --new  (an empty catalog); make demo shows it at work."

$(READY): requirements.lock pyproject.toml tools/setup.sh
	@tools/setup.sh

java: $(READY) ## Java 17 or later: found, or installed on Debian as root
	@$(BIN)/python tools/java.py --install

jdk: $(READY) ## the same with its compiler, for the differential test
	@$(BIN)/python tools/java.py --install --jdk

jars: java ## Iceberg's runtime for Spark and SQLite's driver, into Spark's jar cache
	@$(BIN)/python tools/jars.py

class-archive: jars ## the classes of Spark as tests' JVMs map them: each starts with 4 s of CPU less
	@$(BIN)/python -m tools.class_archive

postgres: $(READY) ## PostgreSQL for the tests: found, or installed on Debian as root
	@$(BIN)/python tools/postgres.py --install

chromium: $(READY) ## Chromium for the tests of the page: found, or installed on Debian as root
	@$(BIN)/python tools/chromium.py --install

vendor: $(READY) ## newer versions of the scripts and styles that the repository holds for the page, from npm
	@$(BIN)/python tools/vendor.py

screenshots: chromium ## the pictures of the page in docs/images, made by its browser test
	ICETOWER_SCREENSHOTS=1 $(BIN)/pytest tests/page/test_page_browser.py

demo: jars ## the main job on real retail data, without and with a tower, then the pipeline on Spark: every cent reconciled; LOOK=1 leaves the tower of the first up
	@$(BIN)/icetower demo --days 2 $(if $(LOOK),--look)
	@$(if $(LOOK),,$(BIN)/icetower pipeline run --days 1 --hours 4 --kills 2)

check: $(READY) ## formatting, lint, types, and which room may import which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

quick: $(READY) ## the tests that need nothing but `make setup`: no process, no connection; pure functions first
	$(BIN)/pytest -m quick --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: check jdk class-archive postgres chromium ## the checks, then all tests of behaviour: real servers and real clients
	@$(MAKE) --no-print-directory quick
	$(BIN)/pytest -m full --durations=25 --durations-min=10 --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

verify: jdk class-archive postgres ## are the tests sharp? Mutations of the engine, the gate and the model; random runs, the demo, the documents
	$(BIN)/pytest -m sharp --durations=25 --durations-min=10 --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

matrix: class-archive ## changes of tables at the steps of each Spark job, of which `make test` runs a few: an hour
	$(BIN)/pytest -m matrix --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

verify-docs: jars jdk ## every command and block of code of the README and docs/, those that take longer than 20 s too
	ICETOWER_VERIFY_DOCS=1 $(BIN)/pytest tests/pages

differential: jars jdk ## the conflict model against Iceberg itself: listed and random interleavings; COUNT, SEED
	@$(BIN)/python -m verify.differential.run --count $(COUNT) --seed $(SEED)

mutations: jars jdk ## is the differential test sharp? The model is mutated, each rule in turn, and must be caught; COUNT, SEED
	@$(BIN)/python -m verify.differential.mutations --count $(COUNT) --seed $(SEED)

walkthrough: jars jdk ## docs/isolation.md and its drawings: every figure run on Iceberg itself
	@$(BIN)/python -m verify.walkthrough.run

reference: $(READY) ## the tables of docs/ that are made from data: rules, invariants, the server's checks
	@$(BIN)/python -m tools.reference.run

experiments: $(READY) ## what makes false conflicts, and what a precise check saves: data, plots, docs/experiments.md
	@$(BIN)/python -m bench.experiments.run

reproduce: $(READY) ## the published tables of commit throughput, simulated anew: differences, data and plots
	@$(BIN)/icetower simulate reproduce --out build/reproduce

bench-clients: jars ## what unchanged clients gain, operation by operation, beside the reference server; installs the clients
	@$(BIN)/python -m bench.clients.run

bench-commit: java ## commits by many writers to one table, beside what people use today: about ten minutes; FULL=1: all of it
	@$(BIN)/python -m bench.commits.run $(if $(FULL),--full)

bench-gate: $(READY) ## what asking a contract, and observation, cost of a commit's server time, at 256 writers: under ten minutes
	@$(BIN)/python -m bench.commits.gate

bench-orphans: jars ## the scan for orphans among a million files, beside Iceberg's own procedure; COUNT for fewer
	@$(BIN)/python -m bench.orphans.run $(if $(filter command line,$(origin COUNT)),--count $(COUNT))

bench-audit: $(READY) ## how long the history of a table takes to audit, and by what that grows: ten thousand commits
	@$(BIN)/python -m bench.audit.run

bench-isolation: jars ## three failure modes of agents, and what isolation saves: plain clients beside Icetower; under ten minutes
	@$(BIN)/python -m bench.commits.isolation $(if $(FULL),--full)

bench-simulator: $(READY) ## the simulator beside real writers: predicted and measured commits a second, about six minutes
	@$(BIN)/python -m bench.commits.simulated

bench-idle: jars ## what a run of each job costs with nothing new, in a Spark that has just started: three minutes
	@$(BIN)/python -m bench.idle.run

bench-intents: $(READY) ## operations on intents a second, in process and over HTTP, with COUNT (10000) leases held
	@$(BIN)/python -m bench.intents.run --held $(if $(filter command line,$(origin COUNT)),$(COUNT),10000)

bench-ledger: $(READY) ## what a lookup in the ledger costs, up to COUNT keys (make bench-ledger COUNT=100000000)
	@$(BIN)/python -m bench.ledger.run --count $(if $(filter command line,$(origin COUNT)),$(COUNT),1000000)

bench-mediator: jars ## the mediator running on: 1,000 rows a second, killed or not, MINUTES (10) long: is its lag bounded?
	@$(BIN)/python -m bench.mediator.run --minutes $(MINUTES)

bench-day: jars ## four days of a warehouse in 24 minutes: do storage, snapshots, logs and lag stay flat? DAYS
	@$(BIN)/python -m bench.day.run $(if $(DAYS),--days $(DAYS))

bench-patterns: jars ## direct MERGE, a log, deltas: which pattern for which writers? Twenty minutes; FULL=1: 4 to 128 agents, hours
	@$(BIN)/python -m bench.patterns.run $(if $(FULL),--full)

bench-rewriters: $(READY) ## agents that rewrite partitions while others append: how much of their work is in vain? Ten minutes; FULL=1: three rounds on slow storage; SHORT=1: does it run?
	@$(BIN)/python -m bench.rewriters.run $(if $(FULL),--full) $(if $(SHORT),--short)

bench-rows: postgres ## rows at the door beside files, PyIceberg and DuckLake on PostgreSQL: twenty minutes; FULL=1: all; SHORT=1: does it run?
	@$(BIN)/python -m bench.rows.run $(if $(FULL),--full) $(if $(SHORT),--short)

bench-page: $(READY) ## how long each page takes, with 1,000 agents, 100 tables, a million attempts and commits beside: ten minutes
	@$(BIN)/python -m bench.page.run

bench-transport: $(READY) ## what a request costs the agent that sends it: httpx2 beside the SDK's own channel; a minute
	@$(BIN)/python -m bench.transport.run

never-weaker: jars jdk ## random jobs by Iceberg's Java client, through a tower and without one, compared; COUNT, SEED
	@$(BIN)/python -m verify.wire.run --count $(COUNT) --seed $(SEED)

exchanges: jars ## the HTTP exchanges of PyIceberg, Spark, iceberg-go and DuckDB, compared with those that are kept; CLIENTS
	@$(BIN)/python -m verify.exchanges.run $(if $(CLIENTS),--only $(CLIENTS))

flink-sink: jars jdk ## several runs of a Flink job by Iceberg's own committer against a tower: each checkpoint once; needs Maven
	@$(BIN)/python -m verify.sinks.run

scan-planning: jdk jars ## do UPDATE, DELETE and MERGE of Spark work when the catalog plans their scans? Five minutes
	@$(BIN)/python -m verify.scan_planning.run

gate-oracle: $(READY) ## contracts: random commits, forged ones among them, against an oracle that knows each row; COUNT, SEED
	@$(BIN)/python -m verify.oracle.run --count $(COUNT) --seed $(SEED)

gate-mutations: $(READY) ## is that oracle sharp? The gate is mutated, in one way after the other, and each must be caught
	@$(BIN)/python -m verify.oracle.mutations

spark-merge: jars ## MERGE from eight threads beside compaction: Icetower and Iceberg's reference server; ROUNDS
	@$(BIN)/python -m verify.wire.spark_merge --rounds $(ROUNDS)

hostile: $(READY) ## hostile files and requests by generators that know the formats, here and over the wire; SECONDS, SEED
	@$(BIN)/python -m verify.hostile.run --seconds $(SECONDS) $(if $(filter command line,$(origin SEED)),--start $(SEED))

soak: $(READY) ## many agents over many tables: memory flat, everybody served alike, no row lost; MINUTES, AGENTS, TABLES
	@$(BIN)/python -m verify.soak.run --minutes $(MINUTES) --agents $(AGENTS) --tables $(TABLES)

torture: $(READY) ## crash safety: the simulation, towers killed with -9, rows sent through all of it; SECONDS or HOURS, ROWS
	@$(BIN)/python -m verify.torture.run $(if $(HOURS),--hours $(HOURS),--seconds $(SECONDS)) $(if $(ROWS),--rows $(ROWS))
	$(if $(HOURS),@ICETOWER_INTENT_SEEDS=$$(( $(HOURS) * 20000 )) $(BIN)/pytest -n0 --hypothesis-profile=default tests/intents/test_store.py::TestTowersLong)

rck: java ## Iceberg's own REST Compatibility Kit against `icetower serve`
	@$(BIN)/python -m verify.rck.run

parquet-fixtures: java ## tests/parquet/fixtures/parquet anew, by the newest DuckDB, Polars, arrow-rs and parquet-java
	@$(BIN)/uv run --no-project --isolated --quiet --with duckdb --with polars --with arro3-core --with arro3-io \
		--with pyarrow --with pandas --with pyspark==4.1.4 python verify/parquet_fixtures/make.py tests/parquet/fixtures/parquet

lock: $(READY) ## choose newer versions within pyproject.toml: rewrites requirements.lock
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev \
		--generate-hashes --no-header --upgrade --quiet --output-file requirements.lock

format: $(READY) ## format the code and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what was built here, the virtual environment included
	rm -rf .venv .cache build dist .icetower .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db derby.log
