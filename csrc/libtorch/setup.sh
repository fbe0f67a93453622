#!/usr/bin/env bash
# Finds LibTorch and writes build/libtorch.cmake.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
: "${LIBTORCH:=/tmp/lt/torch}"
mkdir -p "$root/build"
cat >"$root/build/libtorch.cmake.new" <<END
set(LIBTORCH_INCLUDE "$LIBTORCH/include;$LIBTORCH/include/torch/csrc/api/include")
set(LIBTORCH_LIB "$LIBTORCH/lib")
set(CUDA_INCLUDE "/tmp/lt/nvidia/cu13/include")
set(CUDA_LIB "/tmp/lt/nvidia/cu13/lib")
set(LIBTORCH_EXTRA "")
END
cmp -s "$root/build/libtorch.cmake.new" "$root/build/libtorch.cmake" || cp "$root/build/libtorch.cmake.new" "$root/build/libtorch.cmake"
rm -f "$root/build/libtorch.cmake.new"
