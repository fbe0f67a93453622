# Finds LibTorch. setup.sh sources this file.
#
# find_libtorch sets
#   torch_dir     the folder that holds lib/ and include/ of LibTorch
#   runtime_dir   the folder nvidia/cu13 of the wheels, with CUDA headers, libcudart and libcupti;
#                 empty if these wheels are not used
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
  [ -d "$dir" ] || fail "LIBTORCH=$LIBTORCH is not a folder; set it to LibTorch $version, or unset it to have that downloaded"
  [ -d "$dir/lib" ] && [ -d "$dir/include" ] || dir=$LIBTORCH/torch
  wrong=$(wrong_libtorch "$dir")
  [ -z "$wrong" ] || fail "LIBTORCH=$LIBTORCH: $wrong; set it to LibTorch $version, or unset it to have that downloaded"
  use_libtorch "$dir" "\$LIBTORCH"
}

# from_python uses a torch of this version in the user's Python. It does not import torch,
# because an import takes seconds.
from_python() {
  local python=${PYTHON:-python3} dir wrong
  command -v "$python" >/dev/null || return 1
  dir=$("$python" -c '
import importlib.util, os
spec = importlib.util.find_spec("torch")
if spec and spec.origin: print(os.path.dirname(os.path.abspath(spec.origin)))' 2>/dev/null) || return 1
  [ -n "$dir" ] && [ -f "$dir/lib/libtorch_cpu.so" ] || return 1
  wrong=$(wrong_libtorch "$dir")
  if [ -z "$wrong" ] && [ "$driver" = 1 ] && ! [ -f "$dir/lib/libtorch_cuda.so" ]; then
    wrong="it was built without CUDA, and this machine has an NVIDIA driver"
  fi
  if [ -n "$wrong" ]; then
    say "not using the torch of $python in $dir: $wrong"
    return 1
  fi
  use_libtorch "$dir" "$("$python" -c 'import sys; print(sys.executable)')"
}

# from_wheels uses the pinned wheels, from the cache or from the network.
from_wheels() {
  if [ "$driver" = 1 ]; then
    wheel_tree libtorch-$version-cuda "runtime torch cuda"
  else
    wheel_tree libtorch-$version-cpu "runtime torch"
  fi
  torch_dir=$tree/torch
  runtime_dir=$tree/nvidia/cu13
  origin="the pinned wheels"
}

# use_libtorch folder source: uses a LibTorch that was not unpacked by setup.sh. Its CUDA
# headers come from the runtime wheels. libcudart and libcupti come from there too, if that
# LibTorch does not find them itself.
use_libtorch() {
  torch_dir=$1
  origin=$2
  runtime_dir=""
  [ -n "$(built_for_cuda "$torch_dir")" ] || return 0
  # Without a GPU, a LibTorch that finds all its libraries does not need the CUDA headers.
  # This machine may be offline, so a failed download is no error.
  if [ "$driver" = 0 ] && ! unresolved "$torch_dir/lib/libtorch_cpu.so" >/dev/null && ! (wheel_tree cuda-$cuda_version runtime); then
    say "going on without the CUDA headers: libcgotorch_cuda.so is not built, and needs a GPU to be of use"
    return 0
  fi
  wheel_tree cuda-$cuda_version runtime
  runtime_dir=$tree/nvidia/cu13
  if [ "$driver" = 1 ] && unresolved "$torch_dir/lib/libtorch_cuda.so" >/dev/null; then
    say "$torch_dir has no CUDA libraries beside it, so the GPU here cannot be used; unset LIBTORCH to have them downloaded"
  fi
}

# wrong_libtorch folder: prints what is wrong with the folder, or nothing.
wrong_libtorch() {
  local dir=$1 header have file
  header=$dir/include/torch/headeronly/version.h
  [ -f "$header" ] || header=$dir/include/torch/csrc/api/include/torch/version.h
  if ! [ -f "$header" ]; then
    echo "no include/torch there, so it is not LibTorch $version"
    return
  fi
  have=$(sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' "$header" | paste -sd.)
  if [ "$have" != "$version" ]; then
    echo "it is LibTorch ${have:-of unknown version}, and $version is needed"
    return
  fi
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
  if [ -n "$have" ] && [ "$have" != "$cuda_version" ]; then
    echo "it was built for CUDA $have, and $cuda_version is needed"
  fi
}

# built_for_cuda folder: prints the version of CUDA, such as 13.0, or nothing without CUDA. The
# soname of libcudart has only the major version, such as 13. The minor version is only in
# version.py of torch.
built_for_cuda() {
  local have=""
  [ -f "$1/lib/libtorch_cuda.so" ] || return 0
  if [ -f "$1/version.py" ]; then
    have=$(sed -n "s/^cuda\b.*= *'\([0-9.]*\)'.*/\1/p" "$1/version.py")
  fi
  if [ -z "$have" ]; then
    have=$(readelf -d "$1/lib/libc10_cuda.so" 2>/dev/null | sed -n 's/.*\[libcudart[^]]*\.so\.\([0-9]*\).*/\1/p' | head -1)
    [ "$have" = 13 ] && have=$cuda_version
  fi
  echo "$have"
}

# unresolved library: prints the libraries that the library needs and does not find. Fails if it
# finds them all.
unresolved() {
  env -u LD_LIBRARY_PATH ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found$/\1/p' | grep .
}

# write_libtorch writes build/libtorch.cmake and build/libtorch.env. It does not touch a file
# whose content stays the same, so that nothing is built again.
write_libtorch() {
  local extra="" cuda_include="" cuda_lib="" missing
  if [ -n "$runtime_dir" ]; then
    cuda_include=$runtime_dir/include
    # libcgotorch.so is linked to the libraries that LibTorch does not find, so LibTorch
    # finds them there.
    for missing in $(unresolved "$torch_dir/lib/libtorch_cpu.so"); do
      [ -e "$runtime_dir/lib/$missing" ] || fail "$torch_dir/lib/libtorch_cpu.so needs $missing, which is not on this machine; unset LIBTORCH to have all of it downloaded"
      extra="$extra;$runtime_dir/lib/$missing"
      cuda_lib=$runtime_dir/lib
    done
    [ "$torch_dir" = "${runtime_dir%/nvidia/cu13}/torch" ] && cuda_lib=$runtime_dir/lib
  elif missing=$(unresolved "$torch_dir/lib/libtorch_cpu.so"); then
    fail "$torch_dir/lib/libtorch_cpu.so needs $(echo $missing), not found on this machine; unset LIBTORCH to have LibTorch downloaded"
  fi
  if [ ! -f "$root/build/libtorch.env" ] || ! grep -qxF "LIBTORCH_LIB=\"$torch_dir/lib\"" "$root/build/libtorch.env"; then
    say "LibTorch $version: $torch_dir, from $origin"
  fi
  replace "$root/build/libtorch.cmake" <<END
# Written by csrc/libtorch/setup.sh.
set(LIBTORCH_INCLUDE "$torch_dir/include;$torch_dir/include/torch/csrc/api/include")
set(LIBTORCH_LIB "$torch_dir/lib")
set(CUDA_INCLUDE "$cuda_include")
set(CUDA_LIB "$cuda_lib")
set(LIBTORCH_EXTRA "${extra#;}")
END
  replace "$root/build/libtorch.env" <<END
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
