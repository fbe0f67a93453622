#!/usr/bin/env bash
# record-distributed.sh [FLAG...]   measures data-parallel training on 2, 4 and 8 GPUs, as many as there are
#
# It trains ResNet-50 on resident batches of 32 and 256 images a GPU, and from one .tgz, beside
# PyTorch's DistributedDataParallel eager, captured and compiled. At each number of GPUs it also
# kills and stops ranks. It writes record-distributed.jsonl, and of it the table
# record-distributed.md. Each number takes a quarter of an hour. The FLAGs are those of bench:
# -compile=false leaves out torch.compile, and -rounds 2 is less exact.
# It needs a Python that has PyTorch: $PYTHON, or python3; and 2 GB in $TMPDIR for the archive.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
photographs=("$here"/data/*.tgz)

gpus=$(nvidia-smi -L | grep -c '^GPU')
[ "$gpus" -ge 2 ] || { echo "record-distributed.sh: this machine has $gpus GPU, and two are needed" >&2; exit 1; }
: >record-distributed.jsonl
failed=0
lost=
for n in 2 4 8; do
  [ "$n" -le "$gpus" ] || { echo "record-distributed.sh: $n GPUs are not measured: this machine has $gpus" >&2; continue; }
  CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((n - 1)))
  export CUDA_VISIBLE_DEVICES
  "$here/run.sh" bench -device cuda -python "${PYTHON:-python3}" -photographs "${photographs[0]}" -run '^distributed/' "$@" | tee -a record-distributed.jsonl || failed=1
  result="the others ended, and named it"
  "$here/run.sh" cgotorch-distributed.test -test.run '^TestProcesses_LostCUDA$' || { failed=1 result=FAILED; }
  lost+="| $n | $result |"$'\n'
done
{
  echo "# $(date +%F): data-parallel training"
  echo
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  echo
  "$here/run.sh" bench -table record-distributed.jsonl
  echo
  echo "Each rank killed and stopped, eager and captured:"
  echo
  printf '| GPUs | |\n| --- | --- |\n%s' "$lost"
} | tee record-distributed.md || failed=1
exit $failed
