#!/usr/bin/env bash
# run.sh                 runs every test in this folder and ends with a summary
# run.sh -v              the same, and prints each test's name
# run.sh PROGRAM [ARG…]  runs one program of bin/, such as train or cgotorch_test
# run.sh NAME.test       runs tests/NAME.test
#
# A program runs in the current folder. A program that reads the repository's files, such as train
# without -data, needs `cd tree` first. LibTorch is that of $LIBTORCH, a folder that has lib/. If
# $LIBTORCH is not set, it is that of this machine's Python: $PYTHON, or python3.
set -uo pipefail
shopt -s nullglob # a bundle of make record has no C++ tests
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ -f "$here/programs.tar.xz" ]; then
  tar -C "$here" -xJf "$here/programs.tar.xz" && rm "$here/programs.tar.xz" || exit 1
fi

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
summary=""
failed=0

# step NAME COMMAND... runs a command and notes its result and its seconds.
step() {
  local name=$1 began=$SECONDS result=ok
  shift
  echo "== $name"
  "$@" || { result=FAILED; failed=$((failed + 1)); }
  summary="$summary$(printf '  %-7s %4d s  %s' $result $((SECONDS - began)) "$name")"$'\n'
}

for binary in "$here"/bin/*_test; do
  step "${binary##*/}" "$binary" $gtest
done
for binary in "$here"/tests/*.test; do
  cd "$(folder "${binary##*/}")"
  step "${binary##*/}" "$binary" -test.timeout 10m "${go[@]}"
done
echo
printf %s "$summary"
if [ $failed != 0 ]; then
  echo "FAILED: $failed of the above"
  exit 1
fi
echo "PASSED"
