#!/usr/bin/env bash
# Compares random calls of the typed operators with PyTorch, on the CPU: tests/parity/operators/run.sh [COUNT [SEED]].
# COUNT is the number of cases of each operator, 40 unless given. PEER_PYTHON names a Python that has torch 2.11.0;
# unset, bench/environment.sh finds or makes one. With HOSTILE=1 sizes, steps and counts are often 0.
set -euo pipefail
cd "$(dirname "$0")/../../.."

python=${PEER_PYTHON:-$(bench/environment.sh)}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd cgotorch && go run ./internal/opgen -describe) >"$folder/typed.json"
"$python" tests/parity/operators/cases.py "$folder/typed.json" "${1:-40}" "${2:-1}" ${HOSTILE:+hostile} >"$folder/cases.jsonl" 2>"$folder/log" ||
  { tail -20 "$folder/log"; exit 1; }
tail -1 "$folder/log"
cd cgotorch
CGOTORCH_OPERATOR_CASES="$folder/cases.jsonl" go test . -v -count=1 -timeout 30m -run '^TestOperators_Random$' || {
  status=$?
  number=$(tr -d ' \0' <"$folder/cases.jsonl.now")
  echo "the last case that ran, number $number:"
  sed -n "${number}p" "$folder/cases.jsonl" | cut -c1-2000
  exit $status
}
