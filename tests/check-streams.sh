#!/usr/bin/env bash
# check-streams.sh [JOBS]: the stream checker finds every seeded mistake, and no race in the suite
# and the examples. In a gpu-bundle run.sh does the same.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=${1:-$(nproc)}
log=build/check-streams.log
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

seeded=$(go test -count=1 -v -run 'TestCheckStreams_FindsMistakes' ./tests/streams) || { echo "$seeded"; exit 1; }
found=$(grep -o '[a-z0-9:]*: [0-9]* of [0-9]* mistakes found, [0-9]* false reports' <<<"$seeded") || { echo "$seeded"; exit 1; }

# Tests without LibTorch have no streams and do not run again. tests/examples starts programs.
packages=$(go list -test -f '{{.ImportPath}} {{.Deps}}' ./... | awk '
  $1 ~ /\.test$/ && (/cgotorch\/internal\/ct[] ]/ || $1 ~ /tests\/examples\.test$/) { sub(/\.test$/, "", $1); print $1 }')
[ -n "$packages" ] || { echo "go list names no package with LibTorch"; exit 1; }

# -v: else the output of a test that passes would not be seen.
CGOTORCH_CHECK=streams go test -count=1 -v -timeout 20m -p "$jobs" $packages >"$log" 2>&1
suite=$?
# The reports that tests of the checker itself print are made on purpose.
reports=$(awk '/^=== RUN/ { own = /CheckStreams/ } /^ok|^FAIL/ { own = 0 } /cgotorch: stream race in/ && !own' "$log" | wc -l)
if [ $suite != 0 ] || [ "$reports" != 0 ]; then
  grep -E -A4 '^(--- FAIL|FAIL)|stream race in' "$log" | tail -100
  echo "FAILED: $reports false reports in the suite and the examples; all of it is in $log"
  exit 1
fi
echo "$found" | sed 's/0 false reports$/0 false reports in the suite and the examples/' | tac
echo "$(awk '{ found += $2; made += $4 } END { print found " of " made " mistakes found, 0 false reports" }' <<<"$found")"
