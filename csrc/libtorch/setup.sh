#!/usr/bin/env bash
# setup.sh [build|test|bundle|loader|test-loader [FOLDER]]: makes the machine ready to build, or to
# build and test, or to build and bundle. On a machine that is ready it does nothing and ends at once. The loader needs no
# LibTorch, so for the loader the script handles only compilers and system packages.
#
# LibTorch comes from the first of these that is there: $LIBTORCH, an installed Python torch, or the
# wheels of wheels.lock. The first two may be of any release that wheels.lock lists. The wheels are
# those of 2.11.0, and are kept unpacked in a cache outside the clone. The folder of LibTorch is
# written to libtorch.cmake, for csrc/CMakeLists.txt, and to libtorch.env, for the shell. Both lie in
# FOLDER, which is build if no other is given.
#
# Environment:
#   LIBTORCH           folder that holds lib/ and include/ of LibTorch, or the folder above it
#   LIBTORCH_VERSION   a version of wheels.lock, such as 2.15.0: LibTorch must be of this version
#   PYTHON             the Python that is asked for an installed torch and for pip. Unset: that of the
#                      active venv or conda environment, python3, python3.14 to python3.10, and
#                      /usr/bin/python3 are asked, one after the other
#   STREAMTORCH_CACHE  folder for downloads. Default: ${XDG_CACHE_HOME:-~/.cache}/streamtorch
#   STREAMTORCH_CUDA   1: get the CUDA libraries even if no driver is found. 0: do not get them
#                      even if a driver is found. Unset: get them if a driver is found
set -uo pipefail

default=2.11.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/csrc/libtorch}
purpose=${1:-build}
out=$root/${2:-build}

say() { echo "streamtorch: $*"; }
fail() {
  echo "streamtorch: $*" >&2
  exit 1
}

. "$here/machine.sh"
. "$here/wheels.sh"
. "$here/find.sh"

case $purpose in build | test | bundle | loader | test-loader) ;; *) fail "setup.sh $purpose: want build, test, bundle, loader or test-loader" ;; esac
need_platform
need_tools

mkdir -p "$out" 2>/dev/null || fail "$out cannot be made: $(mkdir -p "$out" 2>&1)"
case $purpose in
  *loader)
    need_packages "$purpose"
    exit
    ;;
esac
wanted=${LIBTORCH_VERSION-}
[ -z "$wanted" ] || [ -n "$(sets_of "$wanted")" ] ||
  fail "LIBTORCH_VERSION=$wanted is not a version that the library builds with; these are: $(versions)"
stamp="$out/setup.$purpose"
driver=0
if has_driver; then driver=1; fi
key="libtorch=${LIBTORCH-} version=$wanted cache=$(cache_folder) cuda=$driver cxx=${CXX-} python=${PYTHON-}"

# is_done succeeds if nothing on which this set-up depends has changed since it last ran.
is_done() {
  [ -f "$stamp" ] && [ "$(<"$stamp")" = "$key" ] && [ -f "$out/libtorch.cmake" ] && [ -f "$out/libtorch.env" ] || return 1
  local LIBTORCH_LIB file
  . "$out/libtorch.env"
  for file in "$LIBTORCH_LIB/libtorch_cpu.so" "$here"/*; do
    [ -f "$file" ] && [ ! "$file" -nt "$stamp" ] || return 1
  done
}

if is_done; then exit 0; fi
exec 8>"$out/setup.lock"
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
