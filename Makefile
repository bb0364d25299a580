# A thin front for the commands that people type most. Everything real is in CMake and in scripts.
.PHONY: build test lint fmt golden golden-update sim fuzz soak torture tsan bench oracles validate clean

build:
	cmake --preset release >/dev/null
	cmake --build --preset release

dev:
	cmake --preset dev >/dev/null
	cmake --build --preset dev

test:
	tests/run

lint: dev
	tests/tidy/tidy.py
	clang-tidy -p build/dev --quiet $$(git ls-files '*.c')

fmt:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cc')

golden: dev
	ctest --preset dev -L golden

# Writes the golden drawings and exports anew; look at `git diff tests/fixtures/render` then.
golden-update: dev
	tests/schedule/golden_render.py build/dev/bin/render_emit --update

# RUNS worlds from SEED on, on SIM_WORKERS processes: whole clusters in virtual time (tests/sim).
SEED ?= 1
RUNS ?= 100000
SIM_WORKERS ?= 2
sim:
	cmake --preset release >/dev/null
	cmake --build --preset release --target sim_worlds
	build/release/bin/sim_worlds $(SEED) $(RUNS) $(SIM_WORKERS)

# libFuzzer on every reader of what others write, FUZZ_SECONDS each; then the random campaigns.
FUZZ_SECONDS ?= 60
fuzz: dev
	deploy/setup fuzz
	cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz
	tests/fuzz/run build/fuzz $(FUZZ_SECONDS)
	DP_FUZZ_RUNS=200000 ctest --preset dev -L fuzz --timeout 3600

# Ten thousand small exchanges between expert ranks, then real jobs for SOAK_SECONDS: memory and
# descriptors of every process must stay flat.
SOAK_SECONDS ?= 1800
soak: build
	DP_FUZZ_RUNS=10000 ctest --test-dir build/release -R '^alltoall_faults$$' --output-on-failure
	DP_SOAK_SECONDS=$(SOAK_SECONDS) DP_BIN=$(CURDIR)/build/release/bin DP_SOURCE=$(CURDIR) \
	    python3 tests/system/test_soak.py

# Jobs that train while everything around them is killed, stopped, cut off or full.
TORTURE_SECONDS ?= 1800
TORTURE_SEED ?= 1
torture: build
	DP_BIN=$(CURDIR)/build/release/bin DP_SOURCE=$(CURDIR) \
	    tests/torture/torture.py --seconds $(TORTURE_SECONDS) --seed $(TORTURE_SEED)

tsan:
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan
	OPENBLAS_NUM_THREADS=1 ctest --test-dir build/tsan -L threads --output-on-failure

bench: build
	tests/bench/run

# What needs packages from PyPI, in environments under build/ (some GB): the model family and fp8
# products against the current PyTorch, checkpoints against safetensors and transformers.
oracles: build
	tests/oracle/torch_current
	tests/oracle/transformers

# Predicted against published, every row of every table (VALIDATION=DIR holds them); fails when
# errors grow beyond tests/validate/recorded.json. VALIDATE_ARGS: see tests/validate/README.md.
VALIDATION ?= ../shared/validation
validate: build
	tests/validate/validate.py --data $(VALIDATION) --dpctl build/release/bin/dpctl $(VALIDATE_ARGS)

clean:
	rm -rf build
