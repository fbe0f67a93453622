#!/usr/bin/env bash
# setup.sh [build|test|loader|test-loader]: makes the machine ready to build, or to build and test.
# On a ready machine it does nothing, quickly. For the loader, which needs no LibTorch, it sees to
# compilers and system packages alone.
#
# LibTorch comes from $LIBTORCH, else from an installed Python torch of the same version, else from
# the wheels of wheels.lock, kept unpacked in a cache outside the clone. Its place is written to
# build/libtorch.cmake, for csrc/CMakeLists.txt, and to build/libtorch.env, for the shell.
#
# Environment:
#   LIBTORCH           folder that holds lib/ and include/ of LibTorch 2.11.0, or the folder above it
#   PYTHON             the Python that is asked for an installed torch and for pip. Default: python3
#   STREAMTORCH_CACHE  folder for downloads. Default: ${XDG_CACHE_HOME:-~/.cache}/streamtorch
#   STREAMTORCH_CUDA   1: get the CUDA libraries though no driver is seen. 0: do not, though a
#                      driver is seen
set -uo pipefail

version=2.11.0
cuda_version=13.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/csrc/libtorch}
purpose=${1:-build}

say() { echo "streamtorch: $*"; }
fail() {
  echo "streamtorch: $*" >&2
  exit 1
}

. "$here/machine.sh"
. "$here/wheels.sh"
. "$here/find.sh"

case $purpose in build | test | loader | test-loader) ;; *) fail "setup.sh $purpose: want build, test, loader or test-loader" ;; esac
need_platform
need_tools

mkdir -p "$root/build" 2>/dev/null || fail "$root/build cannot be made: $(mkdir -p "$root/build" 2>&1)"
case $purpose in
  *loader)
    need_packages "$purpose"
    exit
    ;;
esac
stamp="$root/build/setup.$purpose"
driver=0
if has_driver; then driver=1; fi
key="libtorch=${LIBTORCH-} cache=$(cache_folder) cuda=$driver cxx=${CXX-}"

# is_done: no input of this set-up has changed.
is_done() {
  [ -f "$stamp" ] && [ "$(<"$stamp")" = "$key" ] && [ -f "$root/build/libtorch.cmake" ] && [ -f "$root/build/libtorch.env" ] || return 1
  local LIBTORCH_LIB file
  . "$root/build/libtorch.env"
  for file in "$LIBTORCH_LIB/libtorch_cpu.so" "$here"/*; do
    [ -f "$file" ] && [ ! "$file" -nt "$stamp" ] || return 1
  done
}

if is_done; then exit 0; fi
exec 8>"$root/build/setup.lock"
if ! flock -n 8; then
  say "another make is setting this clone up; waiting for it"
  flock 8
fi
if is_done; then exit 0; fi
rm -f "$stamp"
need_packages "$purpose"
find_libtorch
write_libtorch
echo "$key" >"$stamp"
