# A run.sh of a bundle sources libtorch.sh, with $here set to the folder of run.sh. libtorch.sh
# finds LibTorch and the libraries in $here/lib. LibTorch is that of $LIBTORCH, a folder that has
# lib/. If $LIBTORCH is not set, it is that of this machine's Python: $PYTHON, or python3.
torch=${LIBTORCH-}
if [ -z "$torch" ]; then
  torch=$("${PYTHON:-python3}" -c '
import importlib.util, os
spec = importlib.util.find_spec("torch")
if spec: print(os.path.dirname(spec.origin))')
fi
if ! [ -f "$torch/lib/libtorch_cpu.so" ]; then
  echo "run.sh: no torch in ${PYTHON:-python3}; set PYTHON to one that has torch 2.11.0, or LIBTORCH to its folder" >&2
  exit 1
fi
export STREAMTORCH_LIB="$here/lib" LIBTORCH="$torch"
# With a driver of NVIDIA's the tests must find CUDA.
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then export CGOTORCH_TEST_CUDA=1; fi
path="$here/lib:$torch/lib"
for dir in "$(dirname "$torch")"/nvidia/*/lib; do
  [ ! -d "$dir" ] || path="$path:$dir"
done
export LD_LIBRARY_PATH="$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
