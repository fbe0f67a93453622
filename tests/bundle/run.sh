#!/usr/bin/env bash
# run.sh                 runs every test in this folder and ends with a summary
# run.sh -v              the same, each test by name
# run.sh PROGRAM [ARG…]  runs one: a program of bin/ (train, cgotorch_test, …) or tests/NAME.test
#                        (give NAME.test)
#
# A program runs in the current folder. A program that reads the repository's files, such as train
# without -data, needs `cd tree` first. LibTorch is that of $LIBTORCH (the folder with lib/ in it),
# else of the Python here ($PYTHON, or python3).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

packed=$(find "$here/bin" "$here/tests" -maxdepth 1 -name '*.gz')
if [ -n "$packed" ]; then
  echo "$packed" | tr '\n' '\0' | xargs -0 -P "$(nproc)" -n 4 gzip -df || exit 1
fi

. "$here/libtorch.sh"

# folder name.test: where it runs, as go test would run it.
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

# step name command...
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
