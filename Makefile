.DEFAULT_GOAL := help
BUILD := build
JOBS ?= $(shell nproc)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## find or download LibTorch, install missing system packages
	@csrc/libtorch/setup.sh

.PHONY: libraries
libraries: setup ## the C++ libraries, into build/lib
	@cmake -S csrc -B $(BUILD)/csrc -G Ninja >/dev/null
	@cmake --build $(BUILD)/csrc -j $(JOBS) --target libraries

.PHONY: build
build: libraries ## the libraries, then every Go package
	@go build ./...

.PHONY: test-cc
test-cc: libraries ## the GoogleTest binaries
	@cmake -S csrc -B $(BUILD)/csrc -G Ninja -DCGOTORCH_TESTS=ON >/dev/null
	@cmake --build $(BUILD)/csrc -j $(JOBS) --target tests
	@for t in cgotorch_test decode_test; do if [ -x $(BUILD)/csrc/$$t ]; then $(BUILD)/csrc/$$t || exit 1; fi; done
