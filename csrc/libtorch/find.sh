# Finds LibTorch. setup.sh sources this file.
#
# find_libtorch sets
#   version       the version of LibTorch
#   torch_dir     the folder that holds lib/ and include/ of LibTorch
#   cuda_tree     the folder nvidia of the wheels with CUDA headers, libcudart and libcupti; empty if
#                 these wheels are not used
#   origin        where LibTorch comes from, for a message
find_libtorch() {
  if [ -n "${LIBTORCH-}" ]; then
    from_environment
  elif ! from_python; then
    from_wheels
  fi
}

# from_environment uses $LIBTORCH. If that is wrong, setup.sh fails and tries nothing else.
from_environment() {
  local dir wrong
  case $LIBTORCH in /*) ;; *) fail "LIBTORCH=$LIBTORCH is not an absolute path; write it from /" ;; esac
  dir=$LIBTORCH
  [ -d "$dir" ] || fail "LIBTORCH=$LIBTORCH is not a folder; $(cure)"
  [ -d "$dir/lib" ] && [ -d "$dir/include" ] || dir=$LIBTORCH/torch
  wrong=$(wrong_libtorch "$dir")
  [ -z "$wrong" ] || fail "LIBTORCH=$LIBTORCH: $wrong; $(cure)"
  use_libtorch "$dir" "\$LIBTORCH"
}

# cure prints what the user can do about a wrong $LIBTORCH.
cure() { echo "set it to LibTorch ${wanted:-$default}, or unset it to have that downloaded"; }

# from_python uses the torch of a Python that is here. The first Python with a usable torch is taken.
from_python() {
  local list python dir wrong seen=:
  mapfile -t list < <(pythons)
  for python in "${list[@]}"; do
    dir=$(torch_of "$python") || continue
    case $seen in *":$dir:"*) continue ;; esac
    seen=$seen$dir:
    wrong=$(wrong_libtorch "$dir")
    if [ -z "$wrong" ] && [ "$driver" = 1 ] && ! [ -f "$dir/lib/libtorch_cuda.so" ]; then
      wrong="it was built without CUDA, and this machine has an NVIDIA driver"
    fi
    [ -n "$wrong" ] || wrong=$(lacks "$dir")
    if [ -z "$wrong" ]; then
      use_libtorch "$dir" "$("$python" -c 'import sys; print(sys.executable)')"
      return
    fi
    say "not using the torch of $python in $dir: $wrong"
  done
  return 1
}

# torch_of python: prints the folder of the torch of this Python. Fails if there is none. It does not
# import torch, because an import takes seconds.
torch_of() {
  local dir real
  dir=$("$1" -c '
import importlib.util, os
spec = importlib.util.find_spec("torch")
if spec and spec.origin: print(os.path.dirname(os.path.abspath(spec.origin)))' 2>/dev/null) || return 1
  [ -n "$dir" ] && [ -f "$dir/lib/libtorch_cpu.so" ] || return 1
  # In an environment of conda these files are links to those of the environment, and only there does
  # LibTorch find its libraries. In a venv of uv they may be links too, and there it is the reverse.
  real=$(readlink -f "$dir/lib/libtorch_cpu.so")
  if unresolved "$dir/lib/libtorch_cpu.so" >/dev/null && ! unresolved "$real" >/dev/null && [ -d "${real%/lib/*}/include/ATen" ]; then
    dir=${real%/lib/*}
  fi
  echo "$dir"
}

# lacks folder: prints which libraries the LibTorch there does not find, or nothing. The set-up has
# libcudart and libcupti for it.
lacks() {
  local missing
  missing=$(unresolved "$1/lib/libtorch_cpu.so" | grep -v '^lib\(cudart\|cupti\)\.so')
  [ -z "$missing" ] || echo "it needs" $missing", not found on this machine"
}

# from_wheels uses the pinned wheels, from the cache or from the network.
from_wheels() {
  version=${wanted:-$default}
  local runtime torch cuda
  read -r runtime torch cuda <<<"$(sets_of "$version")"
  if [ "$driver" = 1 ]; then
    [ -n "$(wheels_of "$cuda")" ] ||
      fail "the CUDA libraries of LibTorch $version are not in wheels.lock; pip install torch==$version and set PYTHON to its Python, or set STREAMTORCH_CUDA=0 for the CPU alone"
    wheel_tree libtorch-$version-cuda "$runtime $torch $cuda"
  else
    wheel_tree libtorch-$version-cpu "$runtime $torch"
  fi
  torch_dir=$tree/torch
  cuda_tree=$tree/nvidia
  origin="the pinned wheels"
}

# use_libtorch folder source: uses a LibTorch that was not unpacked by setup.sh. Its CUDA
# headers come from the runtime wheels. libcudart and libcupti come from there too, if that
# LibTorch does not find them itself.
use_libtorch() {
  torch_dir=$1
  origin=$2
  cuda_tree=""
  version=$(version_of "$torch_dir")
  local cuda runtime
  cuda=$(built_for_cuda "$torch_dir")
  [ -n "$cuda" ] || return 0
  read -r cuda runtime <<<"$(headers_for "$cuda")"
  # Without a GPU, a LibTorch that finds all its libraries does not need the CUDA headers.
  # This machine may be offline, so a failed download is no error.
  if [ "$driver" = 0 ] && ! unresolved "$torch_dir/lib/libtorch_cpu.so" >/dev/null && ! (wheel_tree cuda-$cuda $runtime); then
    say "going on without the CUDA headers: libcgotorch_cuda.so is not built, and needs a GPU to be of use"
    return 0
  fi
  wheel_tree cuda-$cuda $runtime
  cuda_tree=$tree/nvidia
  if [ "$driver" = 1 ] && unresolved "$torch_dir/lib/libtorch_cuda.so" >/dev/null; then
    say "$torch_dir has no CUDA libraries beside it, so the GPU here cannot be used; unset LIBTORCH to have them downloaded"
  fi
}

# version_of folder: prints the version of the LibTorch there, such as 2.11.0, or nothing.
version_of() {
  local header=$1/include/torch/headeronly/version.h
  [ -f "$header" ] || header=$1/include/torch/csrc/api/include/torch/version.h
  [ ! -f "$header" ] || sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' "$header" | paste -sd.
}

# wrong_libtorch folder: prints what is wrong with the folder, or nothing.
wrong_libtorch() {
  local dir=$1 have file
  have=$(version_of "$dir")
  if [ -z "$have" ]; then
    echo "no include/torch there, so it is not LibTorch"
    return
  fi
  if [ "$have" != "${wanted:-$have}" ]; then
    echo "it is LibTorch $have, and $wanted is needed"
    return
  fi
  case " $(versions)" in *" ${have%.*}."*) ;; *)
    echo "it is LibTorch $have, and the library builds with $(versions)"
    return
    ;;
  esac
  for file in lib/libtorch_cpu.so lib/libc10.so include/ATen/core/dispatch/Dispatcher.h; do
    if ! [ -s "$dir/$file" ]; then
      echo "$file is missing"
      return
    fi
  done
  if ! readelf -d "$dir/lib/libtorch_cpu.so" 2>/dev/null | grep -q NEEDED || readelf -d "$dir/lib/libtorch_cpu.so" 2>&1 >/dev/null | grep -q .; then
    echo "lib/libtorch_cpu.so is damaged"
    return
  fi
  have=$(built_for_cuda "$dir")
  if [ -n "$have" ] && [ -z "$(headers_for "$have")" ]; then
    echo "it was built for CUDA $have, and CUDA 12 or 13 is needed"
  fi
}

# headers_for CUDA: prints the version of the CUDA headers for a LibTorch of this CUDA, and their set.
# If wheels.lock has no headers of this CUDA, they are others of the same major version.
headers_for() {
  awk -v cuda="$1" '$1 == "version" && ($3 == cuda || !found && int($3) == int(cuda)) { found = $3 " " $4 } END { print found }' "$here/wheels.lock"
}

# built_for_cuda folder: prints the version of CUDA, such as 13.0, or nothing without CUDA. The minor
# version is only in version.py of torch. Without that file the result is the major version.
built_for_cuda() {
  local have=""
  [ -f "$1/lib/libtorch_cuda.so" ] || return 0
  if [ -f "$1/version.py" ]; then
    have=$(sed -n "s/^cuda\b.*= *'\([0-9.]*\)'.*/\1/p" "$1/version.py")
  fi
  if [ -z "$have" ]; then
    have=$(readelf -d "$1/lib/libc10_cuda.so" 2>/dev/null | sed -n 's/.*\[libcudart[^]]*\.so\.\([0-9]*\).*/\1/p' | head -1)
  fi
  echo "$have"
}

# unresolved library: prints the libraries that the library needs and does not find. Fails if it
# finds them all.
unresolved() {
  env -u LD_LIBRARY_PATH ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found$/\1/p' | grep .
}

# cuda_folders TREE NAME: prints the folders NAME of the CUDA wheels in the folder TREE, with
# semicolons. The wheels of CUDA 13 share one folder, cu13. Those of CUDA 12 have one each, such as
# cuda_runtime.
cuda_folders() {
  find -L "$1"/cu[0-9]* "$1"/cuda_* "$1"/nvjpeg -maxdepth 1 -name "$2" 2>/dev/null | sort | paste -sd ';'
}

# write_libtorch writes libtorch.cmake and libtorch.env. It does not touch a file whose content
# stays the same, so that nothing is built again.
write_libtorch() {
  local extra="" cuda_include="" cuda_lib missing file
  # libcgotorch_cuda.so opens some libraries of CUDA by name.
  cuda_lib=$(cuda_folders "${torch_dir%/*}/nvidia" lib)
  if [ -n "$cuda_tree" ]; then
    cuda_include=$(cuda_folders "$cuda_tree" include)
    # libcgotorch.so is linked to the libraries that LibTorch does not find, so LibTorch
    # finds them there.
    for missing in $(unresolved "$torch_dir/lib/libtorch_cpu.so"); do
      file=$(echo "$cuda_tree"/*/lib/"$missing")
      [ -e "$file" ] || fail "$torch_dir/lib/libtorch_cpu.so needs $missing, which is not on this machine; unset LIBTORCH to have all of it downloaded"
      extra="$extra;$file"
      cuda_lib=$(cuda_folders "$cuda_tree" lib)
    done
  elif missing=$(unresolved "$torch_dir/lib/libtorch_cpu.so"); then
    fail "$torch_dir/lib/libtorch_cpu.so needs $(echo $missing), not found on this machine; unset LIBTORCH to have LibTorch downloaded"
  fi
  if [ ! -f "$out/libtorch.env" ] || ! grep -qxF "LIBTORCH_LIB=\"$torch_dir/lib\"" "$out/libtorch.env"; then
    say "LibTorch $version: $torch_dir, from $origin"
  fi
  replace "$out/libtorch.cmake" <<END
# Written by csrc/libtorch/setup.sh.
set(LIBTORCH_INCLUDE "$torch_dir/include;$torch_dir/include/torch/csrc/api/include")
set(LIBTORCH_LIB "$torch_dir/lib")
set(CUDA_INCLUDE "$cuda_include")
set(CUDA_LIB "$cuda_lib")
set(LIBTORCH_EXTRA "${extra#;}")
END
  replace "$out/libtorch.env" <<END
# Written by csrc/libtorch/setup.sh.
LIBTORCH_LIB="$torch_dir/lib"
CUDA_LIB="$cuda_lib"
END
}

# replace file: replaces the text of the file by standard input, if the text differs.
replace() {
  cat >"$1.new" || fail "$1.new cannot be written; is the disk full?"
  if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}
