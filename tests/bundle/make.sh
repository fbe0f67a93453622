#!/usr/bin/env bash
# make.sh [FILES...] fills gpu-bundle/ for a GPU machine without Go, compiler or LibTorch sources.
# The machine runs the tests and the programs against its own Python torch. make.sh copies FILES
# into gpu-bundle/data.
#
#   record.sh               measures the training of ResNet-50 and writes a table
#   record-dist.sh          measures it on several GPUs, and writes a table and a picture
#   run.sh                  unpacks the packed files, then runs all tests, or one program by name
#   lib/                    libcgotorch*.so, and the libraries of image formats that they need
#   bin/                    the programs of examples/, the benchmarks and the GoogleTest binary
#   tests/NAME.test         the tests of one Go package; NAME is the package's path with dashes
#   tree/                   the files of the repository; a test runs in the folder of its package
#                           there, and reads the files of that folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

limit=60 # MiB
bundle=gpu-bundle
rm -rf "$bundle"
mkdir -p "$bundle"/{lib,bin,tests,tree}
cp tests/bundle/{run,record,record-dist,libtorch}.sh "$bundle/"

cp build/lib/libcgotorch*.so "$bundle/lib/"
for binary in cgotorch_test; do
  [ ! -x build/csrc/$binary ] || cp build/csrc/$binary "$bundle/bin/"
done
# The libraries that the tests of OpenOperators open, for the C++ tests and for those in Go.
mkdir -p "$bundle/tree/build/csrc"
cp build/csrc/libtest_*.so "$bundle/bin/"
cp build/csrc/libtest_{operators,copy}.so "$bundle/tree/build/csrc/"
ldd build/lib/libcgotorch_decode.so | awk '$1 ~ /^lib(jpeg|png|z)/ { print $3 }' | sort -u |
  while read -r library; do cp -L "$library" "$bundle/lib/"; done
chmod u+w "$bundle"/lib/* # the copies of the system's libraries may be read-only
# cgotorch_test contains the core. The core opens its CUDA part in the folder of its own binary.
[ ! -f "$bundle/lib/libcgotorch_cuda.so" ] || ln -s ../lib/libcgotorch_cuda.so "$bundle/bin/"
strip --strip-unneeded "$bundle"/lib/*.so* "$bundle"/bin/*_test

# The dynamic loader replaces $ORIGIN, so the shell must not.
flags=(-trimpath -ldflags '-s -w -extldflags "-Wl,-rpath,$ORIGIN/../lib"')
for program in $(go list -f '{{if eq .Name "main"}}{{.Dir}}{{end}}' ./examples/... 2>/dev/null); do
  go build "${flags[@]}" -o "$bundle/bin/${program##*/}" "$program"
done

bench/build.sh "$bundle/bin/bench"
strip "$bundle/bin/bench"

# Some packages are left out. Tests of the tree and of its generator need the tree, Go and a
# compiler. The other packages do not use a device.
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... |
  grep -vE '/(tests/(rules|setup|install|examples|deploy|mutation)|internal/opgen|bench|examples/inspect|imageloader(/decode)?|internal/(arena|inflate|cuts|cuts/cutdocs)|cgotorch/(safetensors|text/tokenizer))$')
while read -r package; do
  name=${package#github.com/streamtorch/streamtorch/}
  go test -c "${flags[@]}" -o "$bundle/tests/${name//\//-}.test" "$package"
  echo "${name//\//-}.test $name" >>"$bundle/tests/folders"
done <<<"$packages"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$bundle/tree"

if [ $# -gt 0 ]; then
  mkdir "$bundle/data"
  cp -r "$@" "$bundle/data/"
fi

# The programs are packed together, because each contains Go's runtime and they would exceed the
# limit. run.sh unpacks them.
tar -C "$bundle" -c bin tests | xz --lzma2=preset=4,dict=192MiB >"$bundle/programs.tar.xz"
rm -r "$bundle"/{bin,tests}

size=$(du -sm "$bundle" | cut -f1)
du -sh "$bundle"/*
if [ "$size" -gt $limit ]; then
  echo "gpu-bundle/ is $size MiB, over the $limit MiB that a GPU machine takes; bundle less DATA" >&2
  exit 1
fi
echo "gpu-bundle/ is ready, $size MiB: copy it to the GPU machine and run gpu-bundle/run.sh there"
