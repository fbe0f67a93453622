#!/usr/bin/env bash
# record.sh           measures the training of ResNet-50 and writes record.jsonl and record.md
# record.sh REGEXP    measures the benchmarks of bench with such names instead
#
# It needs a GPU, and a Python that has PyTorch: $PYTHON, or python3. It makes an archive of 100,000
# photographs from those of the first .tgz in data/, which takes 11 GB in $TMPDIR. The whole takes half an hour.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
what=${1:-'^graph/(train/resnet50|fed)'}
photographs=("$here"/data/*.tgz)

"$here/run.sh" bench -device cuda -python "$python" -members 100000 -photographs "${photographs[0]}" -run "$what" | tee record.jsonl || exit 1
"$python" - record.jsonl >record.md <<'PROGRAM'
import datetime, json, subprocess, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
print(f"# {datetime.date.today()}: {gpu}\n")
print("| | streamtorch | unit | peer | peer's value | ratio |\n| --- | --- | --- | --- | --- | --- |")
for r in rows:
    values = [r["name"], r["value"], r["unit"], r["peer"], r["peer_value"], r["ratio"]]
    print("| " + " | ".join("" if v is None else str(v) for v in values) + " |")
print("\nA ratio above 1 is better for streamtorch. record.jsonl has the settings of each row.")
PROGRAM
cat record.md
