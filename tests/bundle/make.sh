#!/usr/bin/env bash
# make.sh [FILES...]: fills gpu-bundle/ with what a GPU machine without Go, compiler or LibTorch sources needs to run
# the tests and the programs against the Python torch it has. FILES, if any, are copied into gpu-bundle/data.
#
#   run.sh                  runs all tests, or one program by name
#   lib/                    libcgotorch*.so, and the libraries of image formats it is linked with
#   bin/                    the programs of examples/, the benchmarks and the GoogleTest binaries
#   tests/NAME.test         the tests of one Go package, which run in tests/NAME/, where its testdata is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

limit=60 # MiB
bundle=gpu-bundle
rm -rf "$bundle"
mkdir -p "$bundle"/{lib,bin,tests}
cp tests/bundle/run.sh "$bundle/run.sh"

cp build/lib/libcgotorch*.so "$bundle/lib/"
for binary in cgotorch_test decode_test; do
  [ ! -x build/csrc/$binary ] || cp build/csrc/$binary "$bundle/bin/"
done
ldd build/lib/libcgotorch_decode.so | awk '$1 ~ /^lib(jpeg|png|z)/ { print $3 }' | sort -u |
  while read -r library; do cp -L "$library" "$bundle/lib/"; done
chmod u+w "$bundle"/lib/* # whatever the system's have
# cgotorch_test has the core in itself, which opens its CUDA part beside itself.
[ ! -f "$bundle/lib/libcgotorch_cuda.so" ] || ln -s ../lib/libcgotorch_cuda.so "$bundle/bin/"
strip --strip-unneeded "$bundle"/lib/*.so* "$bundle"/bin/*_test

# The dollar is the loader's.
flags=(-trimpath -ldflags '-s -w -extldflags "-Wl,-rpath,$ORIGIN/../lib"')
for program in $(go list -f '{{if eq .Name "main"}}{{.Dir}}{{end}}' ./examples/... 2>/dev/null); do
  go build "${flags[@]}" -o "$bundle/bin/${program##*/}" "$program"
done

bench/build.sh "$bundle/bin/bench"
strip "$bundle/bin/bench"

# Tests of the tree itself need the tree, Go and a compiler.
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... | grep -vE '/tests/(rules|setup|install) ')
while read -r package dir; do
  name=${package#github.com/streamtorch/streamtorch/}
  name=${name//\//-}
  go test -c "${flags[@]}" -o "$bundle/tests/$name.test" "$package"
  mkdir "$bundle/tests/$name"
  [ ! -d "$dir/testdata" ] || cp -r "$dir/testdata" "$bundle/tests/$name/"
done <<<"$packages"

if [ $# -gt 0 ]; then
  mkdir "$bundle/data"
  cp -r "$@" "$bundle/data/"
fi

size=$(du -sm "$bundle" | cut -f1)
du -sh "$bundle"/*
if [ "$size" -gt $limit ]; then
  echo "gpu-bundle/ is $size MiB, over the $limit MiB that a GPU machine takes; bundle less DATA" >&2
  exit 1
fi
echo "gpu-bundle/ is ready, $size MiB: copy it to the GPU machine and run gpu-bundle/run.sh there"
