#!/usr/bin/env bash
# run.sh JOBS [VERSION...] builds the libraries with each of these versions of LibTorch, one after the
# other, and runs the C++ tests and the Go tests that need LibTorch with them on the CPU.
# Without a VERSION it takes all that internal/install/wheels.lock lists. A version's files are in
# build/versions/VERSION. The Go programs open the libraries of the version.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/steps.sh

jobs=$1
shift
[ $# -gt 0 ] || set -- $(awk '$1 == "version" { print $2 }' internal/install/wheels.lock)
unset LIBTORCH
export STREAMTORCH_CUDA=0

build() {
  local folder=build/versions/$1
  LIBTORCH_VERSION=$1 build/bin/setup test "$folder" || return
  [ -f "$folder/csrc/CMakeCache.txt" ] ||
    cmake -S csrc $(! command -v ninja >/dev/null || echo -G Ninja) -B "$folder/csrc" -DCGOTORCH_TESTS=ON \
      -DCGOTORCH_SETUP="$PWD/$folder/libtorch.cmake" >"$folder/cmake.log" 2>&1 ||
    { cat "$folder/cmake.log"; return 1; }
  flock build/compile.lock cmake --build "$folder/csrc" -j "$jobs" --target libraries cgotorch_test &&
    build/bin/setup manifest "$folder"
}

for version; do
  failed=$steps_failed
  step "LibTorch $version: build" build "$version"
  [ $steps_failed = $failed ] || continue
  step "LibTorch $version: C++ tests" "build/versions/$version/csrc/cgotorch_test" --gtest_brief=1
  step "LibTorch $version: Go tests" env STREAMTORCH_LIB="$PWD/build/versions/$version/lib" CGOTORCH_LIBTORCH="$version" \
    go test -count=1 -p "$jobs" ./tests/{versions,captured,streams,parity/...} ./cgotorch/... ./prefetcher/...
done
steps_end "all tests with LibTorch $*"
