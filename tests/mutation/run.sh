#!/usr/bin/env bash
# run.sh removes each edge of this bundle on a GPU machine, and prints whether the edge's test
# fails:
#
#   NAME: caught            the test passes with the edge and fails without the edge
#   NAME: MISSED            the test passes without the edge too
#   NAME: NO CONTROL        the test fails or is skipped with the edge, so it shows nothing
#
# Logs are in logs/. libtorch.sh explains $LIBTORCH and $PYTHON.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/libtorch.sh"
mkdir -p "$here/logs"
chmod +x "$here"/tests/* "$here"/edges/*/*.test 2>/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# try FOLDER BINARY TEST LOG runs the test. Files of edges/FOLDER replace those of lib/ and
# tests/. All libraries lie in one folder, because each opens the others there. A test that does
# not end in time fails.
try() {
  rm -rf "${work:?}"/*
  ln -s "$here"/lib/* "$here/tests/$2" "$work/"
  [ -z "$1" ] || ln -sf "$here/edges/$1"/* "$work/"
  local arguments=(-test.run "^($3)\$" -test.timeout 2m -test.v)
  [ "$2" != googletest.test ] || arguments=("--gtest_filter=$3")
  (cd "$work" && GOGC=off STREAMTORCH_LIB="$work" LD_LIBRARY_PATH="$work:$LD_LIBRARY_PATH" timeout 150 "./$2" "${arguments[@]}") >"$here/logs/$4" 2>&1
}

edges=0 caught=0
declare -A control
while read -r name binary test; do
  edges=$((edges + 1))
  key=$binary.$test
  if [ -z "${control[$key]-}" ]; then
    control[$key]=failed
    try "" "$binary" "$test" "control-$key.log" && ! grep -qE '^ *--- SKIP|SKIPPED' "$here/logs/control-$key.log" && control[$key]=passed
  fi
  result="NO CONTROL"
  if [ "${control[$key]}" = passed ]; then
    result=MISSED
    try "$name" "$binary" "$test" "$name.log" || { result=caught; caught=$((caught + 1)); }
  fi
  echo "$name: $result"
done <"$here/edges/list"
echo "$caught of $edges edges are guarded by a test"
[ "$caught" = "$edges" ]
