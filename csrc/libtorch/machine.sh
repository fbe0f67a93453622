# Checks what the machine must have. setup.sh sources this file.

# need_platform fails on a platform for which wheels.lock has no wheels of LibTorch.
need_platform() {
  local have="$(uname -s) $(uname -m)"
  case $have in "Linux x86_64" | "Linux aarch64") ;; *) fail "this is $have, and only Linux on x86-64 and on arm64 is supported" ;; esac
  case $root in *[[:space:]]*) fail "$root: cgo cannot build in a folder with a space in its name; move the clone" ;; esac
}

# need_tools fails if compilers, build tools or Go are missing. The message has the command that
# installs them. need_tools never runs that command.
need_tools() {
  local cxx=${CXX:-g++} cc=${CC:-gcc} missing="" version
  command -v "${cxx%% *}" >/dev/null || missing="g++"
  command -v "${cc%% *}" >/dev/null || missing="${missing:-gcc}"
  command -v cmake >/dev/null || missing="$missing cmake"
  command -v make >/dev/null || missing="$missing make"
  command -v flock >/dev/null || missing="$missing util-linux"
  missing=${missing# }
  [ -z "$missing" ] || fail "missing: $missing; run: $(install_command $missing)"

  # clang is asked for by its name, because it sets __GNUC__ to 4.
  version=$("$cxx" -dumpversion) || fail "$cxx does not run; run: $(install_command g++)"
  if "$cxx" --version | grep -qi clang; then
    [ "${version%%.*}" -ge 15 ] || fail "$cxx is clang $version, and LibTorch's headers need 15 or newer; install one and set CXX"
  else
    [ "${version%%.*}" -ge 11 ] || fail "$cxx is version $version, and LibTorch's headers need 11 or newer; install one and set CXX"
  fi

  command -v go >/dev/null || fail "missing: go; install Go 1.24 or newer and put it on the PATH"
  version=$(cd "$root" && go env GOVERSION 2>/dev/null) || version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null)
  version=${version#go}
  case $version in
    1.?|1.?.*|1.1?|1.1?.*|1.2[0-3]|1.2[0-3].*|1.2[0-3][a-z]*) fail "Go is version $version; install Go 1.24 or newer and put it on the PATH" ;;
    "") fail "go env does not run; install Go 1.24 or newer and put it on the PATH" ;;
  esac
}

# pythons prints the Pythons that the set-up asks, one a line: $PYTHON alone if it is set. Else that of
# the active environment, then those on the PATH, then that of the system.
pythons() {
  local named list=("${PYTHON-}")
  [ -n "${PYTHON-}" ] ||
    list=(${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python3"} ${CONDA_PREFIX:+"$CONDA_PREFIX/bin/python3"} python3 python3.{14..10} /usr/bin/python3)
  for named in "${list[@]}"; do
    ! command -v "$named" >/dev/null || echo "$named"
  done
}

# need_python sets `python` to the path of an interpreter with pip. $PYTHON may be a script that starts
# an interpreter, as with pyenv. To kill such a script would leave the interpreter running. Python is
# needed only if something must be downloaded.
need_python() {
  local list named
  mapfile -t list < <(pythons)
  for named in "${list[@]}"; do
    python=$("$named" -c 'import sys; print(sys.executable)' 2>/dev/null) && "$python" -m pip --version >/dev/null 2>&1 && return
  done
  [ ${#list[@]} -gt 0 ] || fail "missing: python3; run: $(install_command python3 python3-pip)"
  fail "${list[0]} has no pip; run: $(install_command python3-pip)"
}

# install_command packages...: prints the command by which the user of this machine installs
# them.
install_command() {
  local sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo "
  echo "${sudo}apt-get update && ${sudo}apt-get install $*"
}

# has_header header: succeeds if the C++ compiler finds the header.
has_header() {
  printf '#include <cstddef>\n#include <cstdio>\n#include <%s>\n' "$1" | "${CXX:-g++}" -E -x c++ - >/dev/null 2>&1
}

# need_packages PURPOSE: installs the missing development packages with apt-get. That needs
# root, or sudo without a password. Otherwise it fails, and the message names the packages.
need_packages() {
  local packages
  packages=$(missing_packages "$1")
  [ -n "$packages" ] || return 0
  if ! command -v apt-get >/dev/null; then
    fail "missing: $packages (Debian's names); install them with this system's package manager"
  fi
  local sudo=""
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
      fail "missing: $packages; run: $(install_command $packages)"
    fi
    sudo="sudo -n"
  fi
  say "installing $packages with apt-get"
  local log="$out/apt.log" apt="env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300"
  if ! $sudo $apt update >"$log" 2>&1; then
    say "apt-get update failed; going on with the package lists that are here (see $log)"
  fi
  if ! $sudo $apt install -y --no-install-recommends $packages >>"$log" 2>&1; then
    fail "apt-get could not install $packages: $(grep '^E:' "$log" | tail -1); see $log, then run: $(install_command $packages)"
  fi
  packages=$(missing_packages "$1")
  [ -z "$packages" ] || fail "$packages installed, and still not found by ${CXX:-g++}; set CPATH and LIBRARY_PATH to where they are"
}

# missing_packages PURPOSE: prints the names of the missing packages on Debian and Ubuntu.
missing_packages() {
  local packages=""
  has_header jpeglib.h || packages="$packages libjpeg-dev"
  has_header png.h || packages="$packages libpng-dev"
  has_header zlib.h || packages="$packages zlib1g-dev"
  case $1 in *test*) has_header gtest/gtest.h || packages="$packages libgtest-dev" ;; esac
  case $1 in test | bundle) command -v patchelf >/dev/null || packages="$packages patchelf" ;; esac
  echo "${packages# }"
}

# has_driver succeeds if an NVIDIA driver is installed. STREAMTORCH_CUDA=0 or 1 decides instead,
# if it is set.
has_driver() {
  case ${STREAMTORCH_CUDA-} in
    0) return 1 ;;
    1) return 0 ;;
    "") ;;
    *) fail "STREAMTORCH_CUDA is \"$STREAMTORCH_CUDA\"; it must be 0, 1 or unset" ;;
  esac
  local PATH="$PATH:/sbin:/usr/sbin" dir
  local IFS=:
  for dir in ${LD_LIBRARY_PATH-}; do
    [ -e "$dir/libcuda.so.1" ] && return 0
  done
  case $(ldconfig -p 2>/dev/null) in *libcuda.so.1*) return 0 ;; esac
  return 1
}
