#!/usr/bin/env bash
# run.sh                 runs every test in this folder, JOBS at a time, and ends with a summary
# run.sh -v              the same, and prints each test's name
# run.sh PROGRAM [ARG…]  runs one program of bin/, such as train or cgotorch_test
# run.sh NAME.test       runs tests/NAME.test
#
# A program runs in the current folder. A program that reads the repository's files, such as train
# without -data, needs `cd tree` first. Without tree.tar.xz the repository is the folder that this
# folder lies in. LibTorch is that of $LIBTORCH, a folder that has lib/. If
# $LIBTORCH is not set, it is that of this machine's Python: $PYTHON, or python3.
set -uo pipefail
shopt -s nullglob # a bundle of make record has no C++ tests
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ -f "$here/programs.tar.xz" ]; then
  tar -C "$here" -xJf "$here/programs.tar.xz" && rm "$here/programs.tar.xz" || exit 1
fi

if [ -f "$here/tree.tar.xz" ]; then
  mkdir -p "$here/tree" && tar -C "$here/tree" -xJf "$here/tree.tar.xz" && rm "$here/tree.tar.xz" || exit 1
fi
[ -d "$here/tree" ] || ln -s .. "$here/tree" # the folder lies in the repository
mkdir -p "$here/tree/build/csrc" && cp "$here"/bin/libtest_{operators,copy}.so "$here/tree/build/csrc/" 2>/dev/null

. "$here/libtorch.sh"

# folder NAME.test prints the folder in which go test runs this test.
folder() { echo "$here/tree/$(awk -v name="$1" '$1 == name { print $2 }' "$here/tests/folders")"; }

if [ $# -gt 0 ] && [ "$1" != -v ]; then
  name=$1
  shift
  case $name in
    *.test) [ -x "$here/tests/$name" ] && cd "$(folder "$name")" && exec "$here/tests/$name" "$@" ;;
    *) [ -x "$here/bin/$name" ] && exec "$here/bin/$name" "$@" ;;
  esac
  echo "run.sh: there is no $name; there are:" $(find "$here/bin" -type f -printf "%f\n" | sort) $(cd "$here/tests" && ls -d *.test) >&2
  exit 1
fi

gtest=--gtest_brief=1
go=()
if [ "${1-}" = -v ]; then
  gtest=--gtest_brief=0
  go=(-test.v)
fi
# Several test programs run at a time. Each starts with few kernels compiled, so that the cores are
# what they wait for. The longest begins first.
jobs=${JOBS:-$(($(nproc) / 4 + 1))}
# These tests take all memory of the GPU, so they run alone.
fill='^(TestDevice_OutOfMemoryByPieces|TestCache_LargerThanDevice)$'
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
summary=""
failed=0

# begin NAME FOLDER COMMAND... runs a command in a folder and notes its result and its seconds.
begin() {
  local name=$1 folder=$2
  shift 2
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
    wait -n
    report
  done
  (
    cd "$folder" && SECONDS=0
    "$@" >"$logs/$name.log" 2>&1
    echo "$? $SECONDS" >"$logs/$name.part" && mv "$logs/$name.part" "$logs/$name.end"
  ) &
}

# report prints what has ended.
report() {
  local end name status took
  for end in "$logs"/*.end; do
    name=$(basename "$end" .end)
    read -r status took <"$end"
    rm "$end"
    echo "== $name"
    cat "$logs/$name.log"
    if [ "$status" = 0 ]; then
      status=ok
    else
      echo "$name has ended with status $status"
      status=FAILED failed=$((failed + 1))
    fi
    summary="$summary$(printf '  %-7s %4d s  %s' $status "$took" "$name")"$'\n'
  done
}

binaries=("$here"/tests/cgotorch.test "$here"/bin/*_test)
for binary in "$here"/tests/*.test; do
  [ "${binary##*/}" = cgotorch.test ] || binaries+=("$binary")
done
for binary in "${binaries[@]}"; do
  name=${binary##*/}
  case $binary in
    */bin/*) begin "$name" . "$binary" $gtest ;;
    */cgotorch.test) # each part compiles its own kernels
      [ ! -x "$binary" ] || for part in 0 1 2 3; do
        names=$("$binary" -test.list . | awk -v part=$part '/^(Test|Example)/ && n++ % 4 == part' | paste -sd '|')
        begin "$name, part $part" "$(folder "$name")" "$binary" -test.timeout 10m -test.run "^($names)$" -test.skip "$fill" "${go[@]}"
      done
      ;;
    *) [ ! -x "$binary" ] || begin "$name" "$(folder "$name")" "$binary" -test.timeout 10m -test.skip "$fill" "${go[@]}" ;;
  esac
done
wait
report
jobs=1
for name in cgotorch.test prefetcher-weights.test; do
  [ ! -x "$here/tests/$name" ] || begin "$name, alone" "$(folder "$name")" "$here/tests/$name" -test.run "$fill" "${go[@]}"
done
wait
report
echo
printf %s "$summary"
echo "in $SECONDS s, $jobs at a time"
if [ $failed != 0 ]; then
  echo "FAILED: $failed of the above"
  exit 1
fi
echo "PASSED"
