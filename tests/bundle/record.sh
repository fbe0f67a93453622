#!/usr/bin/env bash
# record.sh           measures the training of ResNet-50 and writes record.jsonl and record.md
# record.sh REGEXP    measures the benchmarks of bench with such names instead
#
# It needs a GPU, and a Python that has PyTorch: $PYTHON, or python3. It makes an archive of 100,000
# photographs from those of the first .tgz in data/, which takes 11 GB in $TMPDIR, and the peer
# unpacks it. The whole takes half an hour. record.jsonl has the settings of each row.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
what=${1:-'^(graph/train/resnet50|loader/train)'}
photographs=("$here"/data/*.tgz)

"$here/run.sh" bench -device cuda -python "${PYTHON:-python3}" -members 100000 -photographs "${photographs[0]}" -run "$what" | tee record.jsonl || exit 1
{
  echo "# $(date +%F): $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)"
  echo
  "$here/run.sh" bench -table record.jsonl
  echo
  echo "A ratio above 1 is better for streamtorch."
} | tee record.md
