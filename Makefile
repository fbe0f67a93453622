# streamtorch. `make help` lists what there is; the work is done by CMake (csrc/), go, and the scripts named below.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

VERSION := 0.1.0
ARGS    ?=
LISTEN  ?= localhost:8080
QUESTION ?= What does cgotorch.Exec.NoWaits do?
FUZZTIME ?= 10m
RACETIME ?= 25m

# A file that includes the dispatcher takes 2 GB to compile: no more at a time than there are cores and memory for.
JOBS ?= $(shell awk -v cores=$$(nproc) '/^MemAvailable/ { n = int($$2 / 2e6); print n < 1 ? 1 : n < cores ? n : cores }' /proc/meminfo)
CMAKE     := cmake -S csrc $(if $(shell command -v ninja),-G Ninja)
COMPILE   := flock build/compile.lock cmake --build
LOADER    := ./imageloader/... ./internal/ctd ./internal/library ./internal/inflate ./internal/arena ./internal/filelock ./internal/ring ./internal/replace ./internal/panics ./internal/pickle ./internal/pythonjson ./internal/signature ./examples/inspect
QUIETLY    = >build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }

help: ## list the targets
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':[^#]*## ' '/^[a-z-]+:[^#]*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "ARGS=... goes to train, serve, chat and bench, JOBS=n limits how much is compiled at a time (here $(JOBS))."

# SETUP is the program internal/install/setup, which needs Go alone.
SETUP     := build/bin/setup
setup-program:
	@command -v go >/dev/null || { echo "streamtorch: missing: go; install Go 1.24 or newer and put it on the PATH"; exit 1; }
	@CGO_ENABLED=0 go build -o $(SETUP) ./internal/install/setup

setup: setup-program ## find or download LibTorch, install missing system packages (the others call it)
	@$(SETUP) build

# A copied or moved clone has build folders that CMake made for the old place. They are made anew.
moved:
	@for cache in build/*/CMakeCache.txt; do [ -f "$$cache" ] || continue; \
		[ "$$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' $$cache)" -ef csrc ] && [ "$$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' $$cache)" -ef "$${cache%/*}" ] || { \
			echo "$${cache%/*} was made in another place, so it is made anew"; rm -rf "$${cache%/*}"; }; done

libraries: setup moved ## compile csrc/ into the shared libraries in build/lib
	@[ -f build/csrc/CMakeCache.txt ] || { $(CMAKE) -B build/csrc $(call QUIETLY,cmake); }
	@$(COMPILE) build/csrc -j $(JOBS) --target libraries
	@$(SETUP) manifest

build: libraries ## the shared libraries and every Go package
	@go build ./...

loader: setup-program moved ## the half that needs no LibTorch: one library, imageloader and examples/inspect
	@$(SETUP) loader
	@[ -f build/loader/CMakeCache.txt ] || { $(CMAKE) -B build/loader -DCGOTORCH_LOADER_ONLY=ON $(call QUIETLY,cmake-loader); }
	@$(COMPILE) build/loader -j $(JOBS) --target libraries
	@$(SETUP) manifest
	@go build $(LOADER)
	@go build -o build/bin/streamtorch ./cmd/streamtorch

tools: libraries ## the command build/bin/streamtorch: pack, ls, labels, inspect, convert, bench, doctor
	@go build -o build/bin/streamtorch ./cmd/streamtorch

train: libraries ## train ResNet-20 on the images in the repository; ARGS="-epochs 2" are flags
	@go build -o build/bin/train ./examples/train
	@build/bin/train $(ARGS)

train-ddp: libraries ## the same on two ranks of the CPU; on GPUs start build/bin/train by torchrun or srun
	@go build -o build/bin/train ./examples/train
	@export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$${MASTER_PORT:-29500} OMP_NUM_THREADS=$$(( ($$(nproc) + 1) / 2 )); \
		RANK=1 build/bin/train -device cpu $(ARGS) & other=$$!; RANK=0 build/bin/train -device cpu $(ARGS); status=$$?; wait $$other && exit $$status

# CHAT is the folder of the small chat model. make chat and make serve train it if it is missing.
CHAT     ?= build/chat
CHATTIME ?= 4m
CHATTED = @go build -o build/bin/chat ./examples/chat && { [ -f '$(CHAT)/model.safetensors' ] || build/bin/chat -train -time $(CHATTIME) '$(CHAT)'; }

serve: libraries ## serve the model of examples/serve/models, and that of make chat, which is trained first; LISTEN=localhost:8080 is the address, ARGS=... are flags
	@go build -o build/bin/serve ./examples/serve
	$(CHATTED)
	@echo 'curl --data-binary @examples/serve/frog.jpg http://$(LISTEN)/v2/models/cifar10/classify'
	@echo "curl http://$(LISTEN)/v1/chat/completions -d '"'{"model": "chat", "messages": [{"role": "user", "content": "What does Close do?"}]}'"'"
	@exec build/bin/serve -models examples/serve/models -text 'chat=$(CHAT)' -listen $(LISTEN) $(ARGS)

chat: libraries ## ask a small Llama that is trained here first, in four minutes; QUESTION= talks in turns, ARGS=... are flags
	$(CHATTED)
	@build/bin/chat -prompt '$(QUESTION)' $(ARGS) '$(CHAT)'

# Without PROGRAM the script says what to do, and nothing is built before.
bundle: $(if $(PROGRAM),libraries) ## a folder with PROGRAM=./path and all that it loads, for a container or a machine without Go; OUT=folder, CUDA=0 or 1
	@$(if $(PROGRAM),$(SETUP) bundle)
	@csrc/libtorch/bundle.sh '$(PROGRAM)' '$(OUT)'

test: tests-cc ## all that must pass: C++ tests, go vet, go test, the rules of the tree
	@tests/run.sh $(JOBS)

tests-cc: setup-program moved # the C++ test binaries
	@$(SETUP) test
	@grep -qs '^CGOTORCH_TESTS:BOOL=ON' build/csrc/CMakeCache.txt || { $(CMAKE) -B build/csrc -DCGOTORCH_TESTS=ON $(call QUIETLY,cmake); }
	@$(COMPILE) build/csrc -j $(JOBS) --target libraries tests
	@$(SETUP) manifest

test-install: libraries ## install in systems from the oldest to the newest glibc, from nothing; it needs root, debootstrap and the network
	@STREAMTORCH_TEST_INSTALL=1 go test -count=1 -timeout 60m -v ./tests/install ./internal/install ./internal/library

versions: libraries ## build and test with each LibTorch of internal/install/wheels.lock, on the CPU; VERSIONS="2.9.1 2.15.0" names some
	@tests/versions/run.sh $(JOBS) $(VERSIONS)

test-loader: setup-program moved ## all tests of the half that needs no LibTorch, where there is none
	@$(SETUP) test-loader
	@grep -qs '^CGOTORCH_TESTS:BOOL=ON' build/loader/CMakeCache.txt || { \
		$(CMAKE) -B build/loader -DCGOTORCH_LOADER_ONLY=ON -DCGOTORCH_TESTS=ON $(call QUIETLY,cmake-loader); }
	@$(COMPILE) build/loader -j $(JOBS) --target libraries tests
	@$(SETUP) manifest
	@build/loader/decode_test --gtest_brief=1
	@go vet $(LOADER)
	@$(MAKE) test-loader-go

test-loader-go: loader # its Go tests alone
	@go test -count=1 -vet=off -p $(JOBS) $(if $(SHORT),-short) $(if $(RUN),-run '$(RUN)') $(LOADER)

# The packages of the library that start goroutines or take locks. Under the race detector, others only cost minutes. So do the
# tests that read many archives: the goroutines that read them are those of TestEpoch_ and TestLoader_.
CONCURRENT = $(sort $(dir $(shell grep -rlE --include=*.go '"sync(/atomic)?"|^[[:space:]]*go [a-z]' cgotorch imageloader prefetcher)))

MANY = ^(TestCorpus_|TestArrangements|TestWebDataset|TestOpen_(Splits|Foreigners|CutAnywhere|BitFlippedAnywhere)|TestOptions_(Part|AllowTruncated|EachOnce)|TestScan|TestState_OtherRanks|TestEpoch_(BatchSizes|BatchAboveShuffleBuffer|Ranks)$$)

test-race: libraries ## go test -short with the race detector over packages that start goroutines, RACETIME=25m at most
	@timeout $(RACETIME) go test -race -short -count=1 -vet=off -skip '$(MANY)' -p $(JOBS) $(addprefix ./,$(CONCURRENT)) || { \
		[ $$? != 124 ] || echo "the race detector did not end within $(RACETIME)"; exit 1; }

test-cgocheck: libraries ## go test with every pointer passed to C checked
	@GOEXPERIMENT=cgocheck2 go test -count=1 -p $(JOBS) ./...

check-streams: libraries ## the stream checker: seeded mistakes, then the whole suite and the examples under it
	@tests/check-streams.sh $(JOBS)

test-asan: setup-program moved ## the C++ tests under AddressSanitizer, leaks included
	@$(SETUP) test
	@[ -f build/asan/CMakeCache.txt ] || { $(CMAKE) -B build/asan -DCGOTORCH_TESTS=ON -DCGOTORCH_SANITIZE=address -DCGOTORCH_LIB_DIR=$(CURDIR)/build/asan/lib $(call QUIETLY,cmake); }
	@$(COMPILE) build/asan -j $(JOBS) --target tests
	@for binary in build/asan/{cgotorch,decode}_test; do \
		echo "$$binary" && ASAN_OPTIONS=allocator_may_return_null=1 $$binary --gtest_brief=1 || exit 1; done

fuzz: libraries ## fuzz what reads archives, images, tables, tokenizers, weights and requests, FUZZTIME=10m each
	@for target in imageloader:FuzzArchive imageloader:FuzzIndex internal/inflate:FuzzInflate internal/inflate:FuzzIndex imageloader/decode:FuzzImage cgotorch/text/tokenizer:FuzzTokenizer cgotorch/safetensors:FuzzNewFile cgotorch/pth:FuzzNewFile cgotorch/data:FuzzCSV cgotorch/data:FuzzJSONLines cgotorch/data/parquet:FuzzFile imageloader/idx:FuzzDecode imageloader/cifar:FuzzReadPython cgotorch/pt2:FuzzLoad cgotorch/pt2/gosource:FuzzGenerate cgotorch/serve/oip:FuzzParse examples/serve:FuzzModelInfer; do \
		echo "$$target" && go test -run '^$$' -fuzz "$${target#*:}\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x ./$${target%:*} || exit 1; done

mutations: libraries ## take each wait, record and free away: a test must fail
	@go run ./tests/mutation -jobs $(JOBS)

lint: libraries ## go vet and gofmt; C++ is compiled with -Wall -Wextra, and -Werror where g++ is 13 or older, by every build
	@go vet ./...
	@for system in darwin windows linux; do CGO_ENABLED=0 GOOS=$$system go vet ./... || exit 1; done
	@badly=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$badly" ] || { echo "run gofmt -w on:" $$badly; exit 1; }

generate: libraries ## write the generated files anew
	@go generate ./...

schemas: libraries ## the same, after operators have come to or gone from cgotorch/operators.txt
	@go run ./cgotorch/internal/schemas >build/schemas.txt
	@cd cgotorch && go run ./internal/opgen -update ../build/schemas.txt

docs: libraries ## write the book's code, and the pages from PyTorch and gotorch anew
	@go run ./internal/cuts/cutdocs
	@go test ./tests/docs -update

check-generate: generate ## fail if a generated file is not what its generator writes
	@git diff --exit-code -- cgotorch/pt2/gosource/operators.json $$(git grep -lE '^(//|<!--) Code generated .* DO NOT EDIT' -- '*.go' '*.h' '*.md') || { echo "commit what make generate wrote"; exit 1; }

# Only the rows go to standard output.
bench: ## ours and PyTorch's times, side by side, one JSON object a line; PEER_PYTHON=python that has PyTorch
	@$(MAKE) libraries >&2
	@bench/build.sh build/bin/bench >&2
	@go build -o build/bin/serve ./examples/serve >&2
	@PEER_PYTHON="$${PEER_PYTHON:-$$(bench/environment.sh)}" && export PEER_PYTHON && build/bin/bench $(ARGS)

release: ## the prebuilt libraries of a release, in build/release; ARGS="-arch amd64 -libtorch 2.11.0" makes some; docs/release.md
	@go run ./internal/release -j $(JOBS) $(ARGS)

gpu-bundle: tests-cc ## one folder, gpu-bundle/, with the tests and programs for a GPU machine without Go; DATA=files
	@tests/bundle/make.sh tests $(DATA)

record: libraries ## gpu-bundle/ with DATA=photographs.tgz, whose record.sh writes the table of ResNet-50's training on a GPU machine
	@[ -f "$(DATA)" ] || { echo "streamtorch: no file DATA=$(DATA): name a .tgz of photographs"; exit 1; }
	@tests/bundle/make.sh record "$(DATA)"

record-distributed: record ## the same bundle, whose record-distributed.sh measures 2, 4 and 8 GPUs, and writes a table

clean: ## remove what was built; the downloaded LibTorch stays in its cache
	@rm -rf build gpu-bundle

.PHONY: help setup setup-program moved libraries build loader tools train train-ddp serve chat bundle test tests-cc test-install versions test-loader test-loader-go test-race test-cgocheck check-streams test-asan fuzz mutations lint generate schemas docs check-generate bench \
	release gpu-bundle record record-distributed clean
