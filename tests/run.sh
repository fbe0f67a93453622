#!/usr/bin/env bash
# run.sh [JOBS] runs all checks of `make test`, after the build. It goes on after a failure, so
# that one run shows all failures. At the end it prints one line for each step and one for the
# whole.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/steps.sh

jobs=${1:-$(nproc)}
# JOBS test programs run at a time. All their threads together are at most as many as the cores.
threads=$(($(nproc) / jobs))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}

formatted() {
  local badly
  badly=$(gofmt -l $(git ls-files '*.go')) || return
  [ -z "$badly" ] || { echo "run gofmt -w on:" $badly; return 1; }
}

for binary in build/csrc/cgotorch_test build/csrc/decode_test; do
  step "C++: ${binary##*/}" "$binary" --gtest_brief=1
done
step "go vet ./..." go vet ./...
step "gofmt" formatted
# -count=1 runs every test. Go caches results by the Go sources, and the libraries may have
# changed. -vet=off leaves out the checks that go vet has just made.
step "go test ./..." go test -count=1 -vet=off -timeout 10m -p "$jobs" ./...
step "the same under the stream checker" tests/check-streams.sh "$jobs"
steps_end "all tests"
