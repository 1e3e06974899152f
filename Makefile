# The only entry: what people type, CI runs as well. `make` alone lists it.

.DEFAULT_GOAL := help
SHELL := bash
# setup.sh knows that other users than root don't have nft on their PATH; the tests have to find it there, too.
export PATH := $(PATH):/usr/sbin:/sbin

TARGET := $(or $(CARGO_TARGET_DIR),target)
# Tests on real components wait most of the time: with 6 at once, two cores were idle for half of it. They share control planes, of which up to
# 17 run at once, each with 350 MB: 7 GB, however many tests run.
TEST_THREADS ?= 8

.PHONY: help
help: ## lists this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The story is played with what `make test` builds anyway; BUILD=release builds it for speed. A variable of this name in the environment
# changes nothing.
BUILD := debug
.PHONY: demo
demo: setup-demo ## plays a story on three real clusters and stays up (ONCE=1: ends after the story)
ifeq ($(BUILD),debug)
# With one test among the targets, cargo builds dependencies as `cargo test` needs them, so that nothing is built twice.
	cargo build --workspace --locked --bin towline --bin demo --test setup
else
	cargo build --workspace --release --locked --bin towline --bin demo
endif
	TOWLINE_BIN=$(TARGET)/$(BUILD)/towline $(TARGET)/$(BUILD)/demo $(if $(ONCE),--once)

# The binary is what `cargo test` has built anyway. Asked for it alone, cargo would build every dependency again.
.PHONY: test
test: setup-test ## runs every test, those on real components included, and tells of all that fail
	cargo test --workspace --locked --no-run
	TOWLINE_BIN=$(TARGET)/debug/towline cargo test --workspace --locked --no-fail-fast -- --test-threads=$(TEST_THREADS)

# The randomized tests, with many rounds. A seed brings back what happens, not when.
SEED ?=
ROUNDS ?=
.PHONY: soak
soak: setup-test ## runs the randomized tests for long (SEED=…: the same again; ROUNDS=…: how long, 30; of syncsets ten times as many)
	cargo test --workspace --locked --no-run
	@seed=$(or $(SEED),$$(date +%s)) rounds=$(or $(ROUNDS),30); \
	set -eux; \
	PROPTEST_RNG_SEED=$$seed PROPTEST_CASES=$$((rounds * 100)) cargo test --workspace --locked --lib; \
	export SEED=$$seed ROUNDS=$$rounds TOWLINE_BIN=$(TARGET)/debug/towline; \
	cargo test --workspace --locked --test clusters -- --nocapture --test-threads=1 faults::churn:: ; \
	cargo test --workspace --locked --test clusters -- --nocapture --test-threads=1 elections::rounds:: ; \
	cargo test --workspace --locked --test world -- --nocapture --test-threads=1 status_sync::kills::; \
	cargo test --workspace --locked --test database -- --nocapture --test-threads=1 documents_read::lists:: documents_read::selectors:: documents_read::watches:: ; \
	cargo test --workspace --locked --test database -- --nocapture --test-threads=1 hub_replicas::conditional:: ; \
	ROUNDS=$$((rounds * 2)) cargo test --workspace --locked --test database -- --nocapture --test-threads=1 hub_replicas::storm:: ; \
	cargo test --workspace --locked --test database -- --nocapture --test-threads=1 bus::rounds:: work::rounds:: ; \
	cargo test --workspace --locked --test clusters -- --nocapture inventory::delivery::through_faults ; \
	ROUNDS=$$((rounds * 10)) cargo test --workspace --locked --test world -- --nocapture --test-threads=1 chaos::storm:: ; \
	ROUNDS=$$((rounds * 10)) cargo test --workspace --locked --test world -- --nocapture syncsets::elsewhere::

.PHONY: clients
clients: setup-test ## generates the clients of the hub's API anew, from a running hub
	cargo build --workspace --locked --bin towline
	UPDATE_CLIENTS=1 TOWLINE_BIN=$(TARGET)/debug/towline cargo test --locked --package integration --test contract -- the_go_client_is

.PHONY: docs
docs: setup-tools ## makes the book of the documentation
	cargo build --workspace --locked --bin towline
	hack/docs.sh $(TARGET)/debug/towline

.PHONY: release
release: setup-demo ## writes a release to dist/, and plays the demo with it on each platform
	hack/release.sh

.PHONY: manifests
manifests: setup-tools ## renders the chart into deploy/, for those who use kustomize
	hack/manifests.sh

.PHONY: page-test
page-test: setup-tools ## drives the pages in Chromium, and checks their accessibility (SCREENSHOTS=…: a directory for pictures)
	cargo build --workspace --locked --bin towline --test setup
	tests/page/run.sh $(abspath $(TARGET))/debug/towline $(SCREENSHOTS)

.PHONY: lint
lint: lint-format lint-clippy lint-bans ## checks formatting, and denies every warning of clippy

.PHONY: lint-format
lint-format: setup-tools
	cargo fmt --all --check

.PHONY: lint-clippy
lint-clippy: setup-tools
	cargo clippy --workspace --all-targets --locked -- --deny warnings

.PHONY: lint-bans
lint-bans: setup-tools
	cargo fetch --quiet --locked
	tests/clippy_bans/check.sh

.PHONY: bench
bench: setup-demo ## measures speed, memory and requests on real clusters (AGAINST=go: beside a Go controller; ARGS=…: for the bench)
	cargo build --workspace --release --locked --bin towline --bin bench
	TOWLINE_BIN=$(TARGET)/release/towline $(TARGET)/release/bench $(ARGS)

.PHONY: audit
audit: setup-tools ## checks licences, bans and sources of all dependencies
	@cargo deny --version >/dev/null || { echo "cargo deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
	cargo deny --locked check licenses bans sources

.PHONY: image
image: setup-tools ## builds the container image; without a container engine, runs its steps
	@if docker info >/dev/null 2>&1; then docker build --tag towline .; else hack/image-steps.sh; fi

.PHONY: setup-tools setup-demo setup-test
setup-tools setup-demo setup-test: setup-%:
	@hack/setup.sh $*
