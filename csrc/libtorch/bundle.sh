#!/usr/bin/env bash
# bundle.sh PROGRAM [FOLDER] builds a Go program, and puts it into a folder with every library that it
# loads. PROGRAM is the folder of a main package, of this module or of another one. FOLDER is
# build/bundle/NAME if no other is given.
#
#   NAME                   the program
#   lib/                   libcgotorch*.so, LibTorch, and all that these load but glibc
#   lib64/ and lib/TRIPLE/ the dynamic loader and glibc, with the paths of this machine
#   licenses/              the licences of what is here, as far as they are on this machine
#
# As the root of a container the folder needs nothing else. The loader and glibc are then where the
# kernel and the loader look for them. Elsewhere on a machine the folder uses the loader and glibc of
# that machine. Only the driver of NVIDIA comes from the machine in both cases.
#
# Environment:
#   CUDA        1: with LibTorch's CUDA libraries; it fails if they are not all here. 0: without
#               them. Unset: with them if they are all here
#   GO_LDFLAGS  more flags for Go's linker, such as -X main.version=1
set -euo pipefail
shopt -s extglob nullglob

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/csrc/libtorch}
cd "$root"

fail() {
  echo "streamtorch: $*" >&2
  exit 1
}

program=${1-}
[ -n "$program" ] || fail "name the folder of a program: make bundle PROGRAM=./examples/serve"
[ -d "$program" ] || fail "PROGRAM=$program is not a folder; name that of a main package, from / or from $root"
program=$(cd "$program" && pwd)
name=$(go -C "$program" list -f '{{.Name}}' .) || fail "PROGRAM=$program: go list fails there; see above"
[ "$name" = main ] || fail "PROGRAM=$program is package $name; name the folder of a main package"
case ${CUDA-} in "" | 0 | 1) ;; *) fail "CUDA=$CUDA: it must be 0, 1 or unset" ;; esac
out=${2-}
[ -z "$out" ] || [ ! -e "$out" ] || { [ -d "$out" ] && { [ -z "$(ls -A "$out")" ] || [ -f "$out/licenses/streamtorch/LICENSE" ]; }; } ||
  fail "OUT=$out is there and is no bundle; remove it, or name another folder"
[ -f build/libtorch.env ] && [ -f build/lib/libcgotorch.so ] || fail "the libraries are not built; run make build"
. build/libtorch.env
torch=$LIBTORCH_LIB
[ -f "$torch/libtorch_cpu.so" ] || fail "LibTorch is not in $torch any more; run make setup"

mkdir -p build
work=$(mktemp -d build/bundle.XXXXXX)
trap 'rm -rf "$work"' EXIT
new=$work/new
mkdir -p "$new"

# The dynamic loader replaces $ORIGIN, so the shell must not. An RPATH, unlike a RUNPATH, also serves
# the libraries that name no folder of their own.
go -C "$program" build -trimpath -ldflags "${GO_LDFLAGS-} "'-extldflags "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib"' -o "$root/$new/" . ||
  fail "PROGRAM=$program does not build; see above"
name=$(ls "$new")
binary=$new/$name
mkdir "$new/lib"

# loads FILE prints a line "NAME PATH" for each library that FILE loads here, or "NAME -" if it is not
# found.
search=$root/build/lib:$torch:${CUDA_LIB//;/:}
loads() {
  { LD_LIBRARY_PATH="$search${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ldd "$1" 2>/dev/null || true; } |
    awk '$2 == "=>" && $1 !~ /^\// { print $1, $3 ~ /^\// ? $3 : "-" }'
}

# of_glibc NAME succeeds if the library belongs to glibc, whose parts must all be of one version.
of_glibc() {
  case $1 in
    ld-linux* | lib@(c|m).so.6 | libmvec.so.1 | lib@(dl|resolv|nss_files|nss_dns).so.2 | libpthread.so.0 | lib@(rt|util|anl).so.1) ;;
    *) return 1 ;;
  esac
}

# of_driver NAME succeeds if the library belongs to NVIDIA's driver, which is the machine's own.
of_driver() { case $1 in libcuda.so.1 | libnvidia-*.so.1) ;; *) return 1 ;; esac; }


sources=() # the files that were copied

# copy NAME PATH puts a library into its place.
copy() {
  local to=$new/lib/$1
  ! of_driver "$1" || return 0
  if of_glibc "$1"; then to=$new$2; fi
  [ ! -e "$to" ] || return 0
  mkdir -p "${to%/*}"
  cp -L "$2" "$to"
  chmod u+w "$to" # the copies of the system's libraries may be read-only
  sources+=("$2")
}

# copy_loads FILE copies what FILE loads, as far as it is here. Few machines have the libraries of
# RDMA, for example.
copy_loads() {
  local library path
  while read -r library path; do
    [ "$path" = - ] || copy "$library" "$path"
  done < <(loads "$1")
}

# missing FILE prints the libraries that FILE loads and that are not found.
missing() { loads "$1" | while read -r library path; do [ "$path" != - ] || of_driver "$library" || echo "$library"; done; }

# The program links none of our libraries. Its packages tell which of them it opens.
packages=$(go -C "$program" list -deps .)
module=github.com/streamtorch/streamtorch
needed=("$binary")
case $packages in *$module/internal/ctd*) needed+=("$root/build/lib/libcgotorch_decode.so") ;; esac
case $packages in *$module/cgotorch/internal/ct[!g]* | *$module/cgotorch/internal/ct) needed+=("$root/build/lib/libcgotorch.so") ;; esac
[ ${#needed[@]} -gt 1 ] || fail "$name uses neither LibTorch nor the decoder of images, so it needs no bundle; copy the binary"
# The manifest says for what the libraries are compiled. LibTorch lies beside them.
cp build/bundled.json "$new/lib/libcgotorch.json"
for file in "${needed[@]}"; do
  lacking=$(missing "$file")
  [ -z "$lacking" ] || fail "$name needs ${lacking//$'\n'/, }, not found on this machine; install them, or set LD_LIBRARY_PATH to where they are"
  [ "$file" = "$binary" ] || copy "${file##*/}" "$file"
  copy_loads "$file"
done

# What the core opens while it runs.
with=without
if [ -e "$new/lib/libcgotorch.so" ]; then
  for library in build/lib/libcgotorch*.so; do
    copy "${library##*/}" "$library"
    copy_loads "$library"
  done
  opened=()
  for library in libtorch.so libc10_cuda.so; do
    [ ! -f "$torch/$library" ] || opened+=("$torch/$library")
  done
  why=""
  if [ ! -f "$torch/libtorch_cuda.so" ]; then
    why="the LibTorch in $torch is built without CUDA; pip install a torch with CUDA and set PYTHON to its Python, or unset LIBTORCH"
  elif why=$(missing "$torch/libtorch_cuda.so") && [ -n "$why" ]; then
    why="LibTorch does not find ${why//$'\n'/, }; run STREAMTORCH_CUDA=1 make bundle, which downloads them for the pinned LibTorch"
  elif [ ! -f build/lib/libcgotorch_cuda.so ]; then
    why="libcgotorch_cuda.so is not built; run STREAMTORCH_CUDA=1 make build"
  fi
  [ "${CUDA-}" != 1 ] || [ -z "$why" ] || fail "CUDA=1: $why"
  if [ "${CUDA-}" != 0 ] && [ -z "$why" ]; then
    with=with
    for library in "$torch"/*.so*; do
      case ${library##*/} in libtorch_python* | libshm* | libtorch_global_deps*) ;; *) opened+=("$library") ;; esac
    done
    # These are opened by name: by libcgotorch_cuda.so, cuDNN, cuFile, NVRTC and CUPTI.
    while read -r folder; do
      for library in "$folder"/lib@(cudnn_|cufile_rdma|nvJitLink|nvjpeg|nvperf_host|nvrtc)*.so*; do
        case $library in *.alt.*) continue ;; esac
        [ "$(patchelf --print-soname "$library" 2>/dev/null)" != "${library##*/}" ] || opened+=("$library")
      done
    done < <({ loads "$torch/libtorch_cuda.so" | awk '$2 != "-" { sub("/[^/]*$", "", $2); print $2 }'
      printf '%s\n' "$torch"/../../nvidia/*/lib; } | sort -u)
  fi
  for library in "${opened[@]}"; do
    copy "${library##*/}" "$library"
    # Without CUDA, libcgotorch_nocuda.so takes the place of a library that libtorch.so names.
    [ $with = without ] || copy_loads "$library"
  done
fi

# The libraries of NVIDIA's driver and the resolver need parts of glibc that the program may not.
interpreter=$(patchelf --print-interpreter "$binary")
copy "${interpreter##*/}" "$interpreter"
libc=$(loads "$binary" | awk '$1 == "libc.so.6" { sub("/[^/]*$", "", $2); print $2 }')
for library in libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 libnss_files.so.2 libnss_dns.so.2; do
  [ ! -e "$libc/$library" ] || copy "$library" "$libc/$library"
done

# Each library looks only beside itself. A library without a path inherits the program's.
patchelf --force-rpath --set-rpath '$ORIGIN/lib' "$binary"
for library in "$new"/lib/*.so*; do
  [ -z "$(patchelf --print-rpath "$library")" ] || patchelf --force-rpath --set-rpath '$ORIGIN' "$library"
done

# license NAME FOLDER copies the licences that lie in a folder.
license() {
  local file
  [ -d "$2" ] || return 0
  while read -r file; do
    mkdir -p "$new/licenses/$1"
    cp -L "$file" "$new/licenses/$1/"
  done < <(find -L "$2" "${@:3}" -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'patents*' \) ! -name '*.go')
}
license streamtorch "$root" -maxdepth 1
license go "$(go env GOROOT)" -maxdepth 1
while read -r module folder; do license "$module" "$folder" -maxdepth 1; done < <(
  go -C "$program" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' . | sort -u)
if [ -e "$new/lib/libcgotorch.so" ]; then
  site=$(cd "$torch/../.." && pwd)
  for folder in "$site"/@(torch|nvidia)[-_]*.dist-info; do
    folder=${folder##*/}
    license "${folder%.dist-info}" "$site/$folder"
  done
  license torch "$torch/.." -maxdepth 1
fi
if command -v dpkg >/dev/null; then
  for library in "${sources[@]}"; do
    library=$(readlink -f "$library")
    package=$(dpkg -S "$library" "${library#/usr}" 2>/dev/null | head -1 | cut -d: -f1) || true
    [ -z "$package" ] || [ ! -f "/usr/share/doc/$package/copyright" ] ||
      install -D -m 644 "/usr/share/doc/$package/copyright" "$new/licenses/$package/copyright"
  done
fi
chmod -R u=rwX,go=rX "$new"

out=${out:-build/bundle/$name}
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv -T "$new" "$out" || fail "OUT=$out cannot be written"
out=$(cd "$out" && pwd)

# Nothing may come from elsewhere but glibc, which comes from the machine where there is one.
while read -r library path; do
  of_glibc "$library" || [ "${path#"$out"/}" != "$path" ] || fail "$out/$name would load $library from $path; please report this"
done < <(LD_LIBRARY_PATH=$out/lib ldd "$out/$name" "$out"/lib/libcgotorch*.so | awk '$2 == "=>" && $1 !~ /^\// && $3 ~ /^\// { print $1, $3 }')
echo "$out is ready, $(($(du -sb "$out" | cut -f1) / 1000000)) MB, $with CUDA: run $out/$name, or make it the root of a container"
