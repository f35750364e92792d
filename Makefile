# Two commands do everything on a fresh machine with cargo: `make demo` and `make test`.

# Tools of the tests (virtual environment, database template) live under target/, so `make clean` removes all.
.PHONY: help demo test chart-test scale-test lint fmt bootstrap unit bench fuzz deny clean

help: ## List what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: ## Run Tidegate with three fake providers; needs no key
	cargo run --quiet --package tidegate -- demo

bootstrap: ## Install what the tests need (Debian packages when root, else say what is missing)
	tests/bootstrap/install.sh

fmt: ## Format
	cargo fmt --all

lint: ## What CI checks without running anything
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- --deny warnings
	cargo xtask layers
	cargo xtask files

test: bootstrap ## All tests, against real Postgres, Redis and SDK clients that they start themselves
	@# With all targets, so that programs and tests are built from the same copies of the dependencies.
	cargo build --workspace --all-targets
	cargo run --quiet --package tidegate-test-support --bin tidegate-test-prepare
	cargo nextest run --workspace --profile ci
	cargo test --workspace --doc --quiet
	tests/charts/run.sh --quiet

chart-test: ## The Helm chart with helm 3 and 4, and the images, with the real binaries
	tests/bootstrap/install.sh
	cargo build --workspace --bins
	tests/charts/run.sh --quiet

# Requests that each phase lasts at least; above 1000 a control plane comes and goes, too.
TIDEGATE_SCALE_REQUESTS ?= 2000
scale-test: ## A fleet grows, shrinks and restarts under load; prints a table (short in `make test`)
	tests/bootstrap/install.sh
	cargo build --workspace --bins
	@# It needs root, whatever may be left out elsewhere.
	TIDEGATE_CHARTS_WITHOUT_ROOT= TIDEGATE_SCALE_REQUESTS=$(TIDEGATE_SCALE_REQUESTS) tests/charts/run.sh --quiet --numprocesses=0 test_scaling.py

bench: ## Measure against the limits; prints a table and writes target/bench/summary.json
	cargo build --release --workspace --bins
	cargo run --release --quiet --package tidegate-bench

FUZZ_TARGETS ?= $(basename $(notdir $(wildcard tests/fuzz/fuzz_targets/*.rs)))
FUZZ_SECONDS ?= 60
fuzz: ## Feed each parser of what strangers send for a minute (needs nightly and cargo-fuzz)
	@cargo fuzz --version >/dev/null || { echo "cargo install cargo-fuzz --locked" >&2; exit 1; }
	@# With the versions that everything else has.
	cp Cargo.lock tests/fuzz/Cargo.lock
	for target in $(FUZZ_TARGETS); do \
		mkdir -p tests/fuzz/corpus/$$target && \
		cargo +nightly fuzz run --fuzz-dir tests/fuzz $$target tests/fuzz/corpus/$$target tests/fuzz/seeds/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=9000 -dict=tests/fuzz/words.dict || exit 1; \
	done

deny: ## Licences, advisories and banned crates (needs cargo-deny)
	cargo deny check

clean: ## Remove everything that was built
	cargo clean
