#!/usr/bin/env bash
# run.sh [FLAGS]: builds the benchmarks and runs them beside PyTorch; make bench ARGS=FLAGS calls it. -list names them.
#
# PyTorch is that of $PEER_PYTHON; else it is installed from PyPI, once, into build/bench-venv. That is 3 GB: the same build of
# PyTorch as the LibTorch here, with its CUDA libraries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "bench: $*" >&2
  exit 1
}

venv=build/bench-venv
if [ -z "${PEER_PYTHON-}" ]; then
  PEER_PYTHON=$PWD/$venv/bin/python
  # requirements.txt is copied there last, so an interrupted installation is begun again.
  if ! cmp -s bench/requirements.txt $venv/requirements.txt; then
    echo "bench: installing PyTorch for comparison in $venv" >&2
    rm -rf $venv
    "${PYTHON:-python3}" -m venv $venv >&2 || fail "${PYTHON:-python3} cannot make a virtual environment; install its venv package, or set PEER_PYTHON to a Python that has PyTorch"
    $venv/bin/pip install --quiet --disable-pip-version-check -r bench/requirements.txt >&2 || fail "PyTorch could not be installed; set PEER_PYTHON to a Python that has it"
    cp bench/requirements.txt $venv/
  fi
fi
export PEER_PYTHON

bench/build.sh build/bin/bench
go build -o build/bin/train ./examples/train # which train/imagenet runs
exec build/bin/bench "$@"
