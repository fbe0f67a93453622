#!/usr/bin/env bash
# build.sh OUT [FLAGS] compiles the benchmark program to the file OUT. The program contains the
# peers in C++ and the hand-written wrapper. go build gets FLAGS. build/libtorch.cmake, which make
# libraries writes, says where LibTorch is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -f build/libtorch.cmake ] || { echo "bench: build/libtorch.cmake is missing; run: make libraries" >&2; exit 1; }
value_of() { sed -n "s/^set($1 \"\(.*\)\")\$/\1/p" build/libtorch.cmake; }

export CGO_CXXFLAGS="-O2 -std=c++20 -D_GLIBCXX_USE_CXX11_ABI=1" CGO_LDFLAGS="-O2"
IFS=';'
for dir in $(value_of LIBTORCH_INCLUDE); do CGO_CXXFLAGS+=" -isystem $dir"; done
for dir in $(value_of LIBTORCH_LIB) $(value_of CUDA_LIB); do CGO_LDFLAGS+=" -L$dir -Wl,-rpath,$dir"; done
unset IFS
CGO_LDFLAGS+=" -Wl,--no-as-needed -ltorch_cpu -lc10 -Wl,--as-needed -Wl,--allow-shlib-undefined"
out=$1
shift
go build -tags bench -o "$out" "$@" ./bench
