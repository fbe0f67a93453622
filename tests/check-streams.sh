#!/usr/bin/env bash
# check-streams.sh [JOBS] fails unless the stream checker finds every seeded mistake. The checker
# must also find no race in all other tests and in the examples. In a gpu-bundle,
# CGOTORCH_CHECK=streams run.sh runs the tests under the checker.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=${1:-$(nproc)}
log=build/check-streams.log
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

seeded=$(go test -count=1 -vet=off -v -run 'TestCheckStreams_FindsMistakes' ./tests/streams) || { echo "$seeded"; exit 1; }
found=$(grep -o '[a-z0-9:]*: [0-9]* of [0-9]* mistakes found, [0-9]* false reports' <<<"$seeded") || { echo "$seeded"; exit 1; }

# Packages without LibTorch have no streams, so their tests do not run again. tests/examples has
# no LibTorch either, but starts programs that have it.
packages=$(go list -test -f '{{.ImportPath}} {{.Deps}}' ./... | awk '
  $1 ~ /\.test$/ && (/cgotorch\/internal\/ct[] ]/ || $1 ~ /tests\/examples\.test$/) { sub(/\.test$/, "", $1); print $1 }')
[ -n "$packages" ] || { echo "go list names no package with LibTorch"; exit 1; }

# These tests wait for processes that are killed or late, and their streams are those of other tests.
late='TestProcesses_|TestJoin_Often|TestTorchrun|TestPython_|TestTrainRanks_(Killed|Stopped|FailedInTrace|StartedAgain)'
# The mistakes were found above. The programs end before their first step, or take the steps of
# TestTrain, TestTrainRanks_Interrupted, TestServe and TestSwitch again.
again='TestCheckStreams_FindsMistakes$|TestTrain_(Refuses|Parts|WithoutATest|FullDisk|WeightsOfOtherClasses|Keeps|Interrupt|Resume)|TestTrainRanks_(Differ|FewerRanks|Make)|TestServe_Make|TestSwitch_(Refuses|Prompts|Interrupt)|TestInspect_Status'
# These tests compare numbers of many cases, one stream each, and a race needs two. The models'
# branches have side streams, which are those of the tests in cgotorch/vision.
numbers='TestChannelAffine$|TestSqueezeExcite$|TestFused(SGD|Adam)_BitsOfLibTorch$|TestStep_GradientPatterns$|TestModels_EqualTorchvision$|TestFile_EqualsPyarrow$|TestForward_ClosesIntermediates$|TestOptimizers_EqualPyTorch$|TestModules_EqualPyTorch$|TestMemory_AtMostPyTorchs$|TestGenerate_|TestProgram_Forward_EndlessLoop$'
# -v prints the output of tests that pass, too.
CGOTORCH_CHECK=streams go test -count=1 -vet=off -v -timeout 20m -p "$jobs" -skip "^($late|$again|$numbers)" $packages >"$log" 2>&1
suite=$?
# Tests of the checker print reports on purpose, so these reports do not count.
reports=$(awk '/^=== RUN/ { own = /CheckStreams/ } /^ok|^FAIL/ { own = 0 } /cgotorch: stream race in/ && !own' "$log" | wc -l)
if [ $suite != 0 ] || [ "$reports" != 0 ]; then
  grep -E -A4 '^(--- FAIL|FAIL)|stream race in' "$log" | tail -100
  echo "FAILED: $reports false reports in the suite and the examples; all of it is in $log"
  exit 1
fi
echo "$found" | sed 's/0 false reports$/0 false reports in the suite and the examples/' | tac
echo "$(awk '{ found += $2; made += $4 } END { print found " of " made " mistakes found, 0 false reports" }' <<<"$found")"
