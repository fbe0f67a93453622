#!/usr/bin/env bash
# run.sh runs the Go tests of make test-loader without LibTorch. It works in a copy of the tree without build/.
# HOME is empty, and PATH has no python3. As root, run.sh uses a mount namespace in which every
# folder with a LibTorch is empty. It then checks that no LibTorch is left. Without the right to
# do so, run.sh only uses an environment that names no LibTorch. It prints which of the two ways
# it used. It also prints the size of the binaries of the half without LibTorch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# torches prints the files of every LibTorch on this machine.
torches() {
  find / \( -path /proc -o -path /sys \) -prune -o \( -name 'libtorch*.so*' -o -name 'libc10*.so*' \) -print 2>/dev/null || true
}

if [ "${1-}" != inside ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  mkdir "$scratch"/{tree,home,bin,empty}
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -P -t "$scratch/tree" 2>/dev/null || true

  # PATH becomes one folder with links to all tools except Python and pip.
  IFS=: read -ra folders <<<"$PATH"
  for folder in "${folders[@]}"; do
    for tool in "$folder"/*; do
      name=${tool##*/}
      case $name in python* | pip*) continue ;; esac
      [ ! -x "$tool" ] || [ -d "$tool" ] || [ -e "$scratch/bin/$name" ] || ln -s "$tool" "$scratch/bin/$name"
    done
  done

  inside=(env -i PATH="$scratch/bin" HOME="$scratch/home" LANG="${LANG-C}" GOFLAGS="${GOFLAGS-}" GOPROXY="$(go env GOPROXY)"
    GOCACHE="$(go env GOCACHE)" GOMODCACHE="$(go env GOMODCACHE)" "$(command -v bash)" "$scratch/tree/tests/loader/run.sh" inside)
  if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
    echo "streamtorch: in a mount namespace without LibTorch"
    unshare --mount --propagation private "$(command -v bash)" -c '
      set -eu
      empty=$1
      shift
      while read -r file; do
        folder=$(dirname "$file")
        [ "${folder##*/}" != lib ] || folder=$(dirname "$folder")
        [ -d "$folder" ] || continue # it lies in one that is hidden already
        mountpoint -q "$folder" || mount --bind "$empty" "$folder"
      done
      exec "$@"' hide "$scratch/empty" "${inside[@]}" hidden < <(torches)
  else
    echo "streamtorch: no mount namespace here: an empty HOME, and nothing in the environment that names a LibTorch"
    "${inside[@]}" seen
  fi
  exit
fi

if [ "$2" = hidden ]; then
  left=$(torches)
  [ -z "$left" ] || { echo "streamtorch: a LibTorch is left: $left" >&2; exit 1; }
fi
command -v python3 && { echo "streamtorch: a Python is left" >&2; exit 1; }

# All other tests run in make test, with the same Go code and the same decoder. Here one test of each
# kind shows that the half without LibTorch is opened and reads archives, files and images.
make test-loader-go SHORT=1 RUN='^(Example|TestOpenFS|TestEpoch_(BatchSizes|Skip)|TestScan|TestPool_Decode_|TestTransforms_|TestRead|TestInspect|TestPack)'
go build -o build/bin/inspect ./examples/inspect
build/bin/inspect examples/train/data/cifar10-10k.tgz >build/inspect.log || { cat build/inspect.log; exit 1; }

# weigh TITLE FILE prints the size of FILE. It fails if FILE is linked with LibTorch.
weigh() {
  if ldd "$2" | grep -E 'libtorch|libc10|libcuda|libcgotorch\.so'; then
    echo "streamtorch: $2 is linked with LibTorch" >&2
    exit 1
  fi
  printf '%9d bytes  %s\n' "$(stat -Lc %s "$2")" "$1"
}
weigh "examples/inspect" build/bin/inspect
weigh "libcgotorch_decode.so" build/lib/libcgotorch_decode.so
for codec in jpeg png16 z; do
  weigh "lib$codec, of the system" "$(ldd build/lib/libcgotorch_decode.so | awk -v name="lib$codec.so" 'index($1, name) == 1 { print $3 }')"
done
