#!/usr/bin/env bash
# environment.sh prints the path of the Python that the benchmarks compare with. This Python
# belongs to a virtual environment in the cache that has PyTorch and torchvision. The first call
# installs the environment, which takes 2.5 GB, with the package index of the user's pip. The
# progress goes to standard error.
set -euo pipefail

packages=(torch==2.11.0 torchvision==0.26.0 'pillow>=11' 'numpy>=2' 'safetensors>=0.5')
cache=${STREAMTORCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/streamtorch}
environment=$cache/peer-$(echo "${packages[@]}" | sha256sum | cut -c1-12)

fail() {
  echo "bench: $*" >&2
  exit 1
}

mkdir -p "$cache" || fail "the cache $cache cannot be made; set STREAMTORCH_CACHE to a folder that can be written"
exec 9>"$environment.lock"
flock 9
if ! [ -f "$environment/whole" ]; then
  echo "bench: installing ${packages[*]} into $environment" >&2
  rm -rf "$environment"
  python3 -m venv "$environment" >&2 || fail "python3 cannot make an environment; run: apt-get install python3-venv"
  "$environment/bin/python" -m pip install --disable-pip-version-check --no-cache-dir "${packages[@]}" >&2 9>&- ||
    fail "PyTorch cannot be installed into $environment (see above); mend that, or set PEER_PYTHON to a Python that has it"
  touch "$environment/whole"
fi
echo "$environment/bin/python"
