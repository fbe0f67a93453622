#!/usr/bin/env bash
# make.sh tests [FILES...]    fills gpu-bundle/ with the tests, the programs and the benchmarks
# make.sh record [FILES...]   fills gpu-bundle/ with what record.sh and record-distributed.sh need
#
# The folder is for a GPU machine without Go, compiler or LibTorch sources. The machine runs the
# binaries against its own Python torch. make.sh copies FILES into gpu-bundle/data. Each must be a
# file, or a link to one.
#
#   record.sh               measures the training of ResNet-50 and writes a table
#   record-distributed.sh          measures it on several GPUs, and writes a table
#   run.sh                  unpacks the packed files, then runs all tests, or one program by name
#   lib/                    libcgotorch*.so, and the libraries of image formats that they need
#   bin/                    the programs of examples/, the benchmarks and the GoogleTest binary
#   tests/NAME.test         the tests of one Go package; NAME is the package's path with dashes
#   tree/                   the files of the repository; a test runs in the folder of its package
#                           there, and reads the files of that folder. A copy of gpu-bundle/ that
#                           lies in a clone needs no tree.tar.xz
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

what=$1
shift
for file; do # before the build, which takes minutes
  if [ -d "$file" ]; then
    why="is a folder; name the files in it"
  elif [ -L "$file" ] && [ ! -e "$file" ]; then
    why="is a link to $(readlink "$file"), which is not there; mend the link, or name the file"
  elif [ ! -e "$file" ]; then
    why="is not there; check the path, which begins in $PWD or at /"
  elif [ ! -f "$file" ]; then
    why="is no file"
  else
    continue
  fi
  echo "streamtorch: DATA=$file $why" >&2
  exit 1
done
bundle=gpu-bundle
rm -rf "$bundle"
mkdir -p "$bundle"/{lib,bin,tests}
cp tests/bundle/{run,record,record-distributed,libtorch}.sh "$bundle/"

cp build/lib/libcgotorch*.so "$bundle/lib/"
cp build/bundled.json "$bundle/lib/libcgotorch.json"
if [ "$what" = tests ]; then
  cp build/csrc/cgotorch_test "$bundle/bin/"
  # The libraries that the tests of OpenOperators open, for the C++ tests and for those in Go.
  cp build/csrc/libtest_*.so "$bundle/bin/"
  # cgotorch_test contains the core. The core opens its CUDA part in the folder of its own binary.
  ln -s ../lib/libcgotorch_cuda.so "$bundle/bin/"
  strip --strip-unneeded "$bundle"/bin/*_test
fi
ldd build/lib/libcgotorch_decode.so | awk '$1 ~ /^lib(jpeg|png|z)/ { print $3 }' | sort -u |
  while read -r library; do cp -L "$library" "$bundle/lib/"; done
chmod u+w "$bundle"/lib/* # the copies of the system's libraries may be read-only
strip --strip-unneeded "$bundle"/lib/*.so*

flags=(-trimpath -ldflags '-s -w')
programs=./examples/serve # bench starts it
[ "$what" != tests ] || programs=$(go list -f '{{if eq .Name "main"}}{{.Dir}}{{end}}' ./examples/... 2>/dev/null)
for program in $programs; do
  go build "${flags[@]}" -o "$bundle/bin/${program##*/}" "$program"
done

bench/build.sh "$bundle/bin/bench"
strip "$bundle/bin/bench"

# Tests of packages that do not use LibTorch are left out, because every machine runs them, and large
# programs whose tests use the CPU alone. So are those that need the tree, Go and a compiler.
# record-distributed.sh kills ranks by tests of distributed.
module=github.com/streamtorch/streamtorch
packages=$module/cgotorch/distributed
[ "$what" != tests ] || packages=$(go list -test -f '{{$package := .ImportPath}}{{if not .ForTest}}{{range .Deps}}{{if eq . "'$module'/cgotorch/internal/ct"}}{{$package}}{{end}}{{end}}{{end}}' ./... |
  sed -n 's/\.test$//p' | grep -vE '/(bench|cmd/streamtorch|examples/inspect|cgotorch/data/parquet|tests/docs|tests/examples)$')
while read -r package; do
  name=${package#"$module"/}
  go test -c "${flags[@]}" -o "$bundle/tests/${name//\//-}.test" "$package"
  echo "${name//\//-}.test $name" >>"$bundle/tests/folders"
done <<<"$packages"
if [ "$what" = tests ]; then
  git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | xz -2 >"$bundle/tree.tar.xz"
else
  mkdir -p "$bundle/tree/cgotorch/distributed" # where its tests run
fi

if [ $# -gt 0 ]; then
  mkdir "$bundle/data"
  cp -L "$@" "$bundle/data/"
fi

# The programs are packed together, because each contains Go's runtime. run.sh unpacks them. The
# filter for x86 makes the whole 6 % smaller.
tar -C "$bundle" -c bin tests | xz --x86 --lzma2=preset=6,dict=192MiB >"$bundle/programs.tar.xz"
rm -r "$bundle"/{bin,tests}

du -sh "$bundle"/*
echo "gpu-bundle/ is ready, $(du -sm "$bundle" | cut -f1) MiB: copy it to the GPU machine and run it there"
