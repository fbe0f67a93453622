# Downloads the pinned wheels, checks them against wheels.lock, and keeps them unpacked in a cache.
# setup.sh sources this file.
#
#   CACHE/wheels/NAME-VERSION-HASH   one wheel, unpacked
#   CACHE/libtorch-2.11.0-cpu-HASH   a tree of several wheels, made of hard links. Its folders are
#                                    those that pip makes, because LibTorch finds its libraries
#                                    by paths relative to its own folder
#   CACHE/tmp                        unfinished downloads. What lies outside of tmp is complete

# cache_folder prints the path of CACHE.
cache_folder() {
  echo "${STREAMTORCH_CACHE:-${XDG_CACHE_HOME:-${HOME-}/.cache}/streamtorch}"
}

# versions prints the versions of LibTorch with which the library builds.
versions() { awk '$1 == "version" { print $2 }' "$here/wheels.lock" | paste -sd ' '; }

# sets_of version: prints the sets of this version, or nothing if wheels.lock does not list the version.
sets_of() { awk -v of="$1" '$1 == "version" && $2 == of { print $4, $5, $6 }' "$here/wheels.lock"; }

# wheels_of sets: prints the lines of wheels.lock for these sets and this machine.
wheels_of() {
  awk -v sets=" $1 " -v machine="_$(uname -m)$" '!/^#/ && $1 != "version" && NF == 7 && index(sets, " " $1 " ") && $4 ~ machine' "$here/wheels.lock"
}

# wheel_tree name sets: sets `tree` to a folder in which the wheels of these sets are unpacked.
# Downloads the wheels that are missing.
wheel_tree() {
  local cache lines set
  cache=$(cache_folder)
  for set in $2; do
    [ -n "$(wheels_of "$set")" ] ||
      fail "wheels.lock has no $set for $(uname -m); use LibTorch $default there"
  done
  lines=$(wheels_of "$2")
  tree=$cache/$1-$(echo "$lines" | sha256sum | cut -c1-12)
  ! is_whole "$tree" "$2" || return 0

  case $cache in
    /.cache/*) fail "HOME is not set; set STREAMTORCH_CACHE to a folder for downloads" ;;
    /*) ;;
    *) fail "the cache $cache is not an absolute path; set STREAMTORCH_CACHE to one" ;;
  esac
  mkdir -p "$cache/tmp" "$cache/wheels" 2>/dev/null && [ -w "$cache" ] ||
    fail "the cache $cache cannot be written; set STREAMTORCH_CACHE to a folder that can"
  exec 9>"$cache/lock"
  if ! flock -n 9; then
    say "another set-up is filling $cache; waiting for it"
    flock 9
  fi
  if ! is_whole "$tree" "$2"; then
    remove "$cache"/tmp/* "$tree"
    work=$(mktemp -d "$cache/tmp/XXXXXX") || fail "the cache $cache cannot be written; is the disk full?"
    pip_pid=""
    trap stop_download EXIT
    trap 'exit 130' INT TERM HUP
    fetch_wheels "$cache" "$lines"
    link_tree "$cache" "$tree" "$lines"
    stop_download
    trap - EXIT INT TERM HUP
  fi
  exec 9>&-
}

# is_whole tree sets: succeeds if the tree is complete. A tree gets its name only when it is
# complete, so a file is missing only if a user has deleted it.
is_whole() {
  compgen -G "$1/nvidia/*/include" >/dev/null || return 1
  case $2 in *torch*) [ -s "$1/torch/lib/libtorch_cpu.so" ] ;; esac
}

# stop_download stops pip and removes unfinished files.
stop_download() {
  if [ -n "$pip_pid" ]; then
    kill "$pip_pid" 2>/dev/null
    wait "$pip_pid" 2>/dev/null
  fi
  remove "$work"
}

remove() { rm -rf -- "$@"; }

# unpacked_wheel cache name version sha256: prints the folder for that wheel, unpacked.
unpacked_wheel() { echo "$1/wheels/$2-$3-${4:0:12}"; }

# fetch_wheels cache lines: downloads and unpacks the wheels of these lines that are not in the
# cache yet.
fetch_wheels() {
  local cache=$1 missing="" total=0 disk=0 peak=0 free set name ver platform bytes unpacked sha
  while read -r set name ver platform bytes unpacked sha; do
    [ ! -d "$(unpacked_wheel "$cache" "$name" "$ver" "$sha")" ] || continue
    missing="$missing$set $name $ver $platform $bytes $unpacked $sha"$'\n'
    # While pip copies a wheel out of its temporary folder, the disk holds the wheel twice.
    local while_here=$((unpacked > bytes ? bytes + unpacked : 2 * bytes))
    [ $((disk + while_here)) -le $peak ] || peak=$((disk + while_here))
    disk=$((disk + unpacked))
    total=$((total + bytes))
  done <<<"$2"
  [ -n "$missing" ] || return 0
  need_python

  free=$(($(df -Pk "$cache" | awk 'NR == 2 { print $4 }') * 1024))
  peak=$((peak + peak / 50))
  [ "$free" -ge "$peak" ] ||
    fail "$cache has $(megabytes $free) MB free, and $(megabytes $peak) MB are needed; free some, or set STREAMTORCH_CACHE to a folder on another disk"
  say "downloading LibTorch $version, $(megabytes $total) MB, into $cache"
  while read -r set name ver platform bytes unpacked sha; do
    [ -z "$name" ] || fetch_wheel "$cache" "$name" "$ver" "$platform" "$bytes" "$sha"
  done <<<"$missing"
}

megabytes() { echo $((($1 + 999999) / 1000000)); }

# fetch_wheel cache name version platform bytes sha256: downloads and unpacks one wheel.
fetch_wheel() {
  local cache=$1 name=$2 ver=$3 platform=$4 bytes=$5 sha=$6 try wheel
  echo "$name==$ver --hash=sha256:$sha" >"$work/requirements.txt"
  for try in 1 2 3; do
    run_pip "$name $ver" "$platform" "$bytes" && break
    if [ $try = 3 ] || ! grep -qE 'IncompleteRead|Connection broken|Read timed out|Connection reset|ConnectionReset' "$work/pip.log"; then
      mv "$work/pip.log" "$cache/pip.log"
      fail "$name $ver: $(pip_failure "$cache/pip.log" "$cache"), then run make setup again (pip's words: $cache/pip.log)"
    fi
    say "$name $ver: the connection broke; trying again"
  done
  wheel=$(find "$work/wheel" -name '*.whl')
  mkdir "$work/unpacked"
  unpack_wheel "$wheel" "$work/unpacked" "$name $ver" "$cache"
  remove "$work/wheel"
  sync -f "$work/unpacked" 2>/dev/null # after a power cut, a final name must not have empty files
  mv "$work/unpacked" "$(unpacked_wheel "$cache" "$name" "$ver" "$sha")" || fail "$cache cannot be written; is the disk full?"
}

# run_pip title platform bytes: downloads the wheels of requirements.txt and shows the progress.
# Index, proxy and certificates come from the user's own configuration of pip.
run_pip() {
  local title=$1 platform=$2 bytes=$3 have ticks=0 code
  remove "$work/wheel" "$work/tmp"
  mkdir "$work/tmp"
  TMPDIR="$work/tmp" PIP_REQUIRE_VIRTUALENV=0 "$python" -m pip download \
    --disable-pip-version-check --no-input --no-cache-dir --progress-bar off --retries 2 \
    --no-deps --only-binary=:all: --require-hashes -r "$work/requirements.txt" --dest "$work/wheel" \
    --python-version 3.11 --implementation cp --abi cp311 --platform "$platform" \
    >"$work/pip.log" 2>&1 8>&- 9>&- </dev/null &
  pip_pid=$!
  while kill -0 $pip_pid 2>/dev/null; do
    sleep 0.25
    ticks=$((ticks + 1))
    if [ -t 1 ] && [ $((ticks % 2)) = 0 ] || [ $((ticks % 20)) = 0 ]; then
      have=$(find "$work" -name '*.whl' -printf '%s\n' 2>/dev/null | sort -n | tail -1)
      show_progress "$title: $(megabytes "${have:-0}") of $(megabytes "$bytes") MB"
    fi
  done
  wait $pip_pid
  code=$?
  pip_pid=""
  remove "$work/tmp"
  [ $code != 0 ] || show_progress "$title: $(megabytes "$bytes") MB, checked"
  [ ! -t 1 ] || echo
  return $code
}

# show_progress text: on a terminal, writes the text over the last one. Otherwise writes a new
# line.
show_progress() {
  if [ -t 1 ]; then printf '\r  %s\033[K' "$1"; else echo "  $1"; fi
}

# pip_failure log cache: prints why pip failed, and what the user can do.
pip_failure() {
  if grep -qiE 'No space left on device' "$1"; then
    echo "the disk of $2 is full; free some, or set STREAMTORCH_CACHE to a folder on another disk"
  elif grep -qE 'DO NOT MATCH THE HASHES|hashes are required|HashMismatch' "$1"; then
    echo "what the package index sent is not the file that wheels.lock names; check which index pip is configured for"
  elif grep -qE 'NewConnectionError|NameResolutionError|Temporary failure in name resolution|Network is unreachable|ConnectTimeout|ReadTimeout|Read timed out|ProxyError|Max retries exceeded|SSLError|Connection broken|IncompleteRead' "$1"; then
    echo "pip cannot reach its package index; check the network and pip's configuration (pip config list), or set LIBTORCH to an unpacked LibTorch ${wanted:-$default}"
  elif grep -qE 'No matching distribution|Could not find a version' "$1"; then
    echo "the package index that pip is configured for does not have it; use one that mirrors PyPI, or set LIBTORCH to an unpacked LibTorch ${wanted:-$default}"
  else
    echo "pip failed ($(grep -E '^ERROR' "$1" | tail -1)); mend that"
  fi
}

# unpack_wheel wheel folder title cache: unpacks the libraries, headers and licences of a wheel.
# Its Python files are left out.
unpack_wheel() {
  local said
  said=$("$python" - "$1" "$2" 2>&1 <<'END'
import re, sys, zipfile
wanted = re.compile(r"(torch|nvidia/[^/]+)/(lib|include)/|[^/]+\.dist-info/licenses/|nvidia/[^/]+/LICENSE")
try:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if wanted.match(name)])
except OSError as e:
    sys.exit("disk: " + str(e))
END
  ) && return
  case $said in
    *"No space left"*) fail "$3: the disk of $4 is full; free some, or set STREAMTORCH_CACHE to a folder on another disk, then run make setup again" ;;
    *) fail "$3: cannot be unpacked into $4: ${said##*$'\n'}" ;;
  esac
}

# link_tree cache tree lines: makes a tree of hard links to the unpacked wheels of these lines.
link_tree() {
  local cache=$1 tree=$2 set name ver platform bytes unpacked sha from
  mkdir "$work/tree"
  while read -r set name ver platform bytes unpacked sha; do
    from=$(unpacked_wheel "$cache" "$name" "$ver" "$sha")
    cp -al "$from/." "$work/tree/" 2>/dev/null || cp -a "$from/." "$work/tree/" ||
      fail "$tree cannot be made; is the disk full?"
  done <<<"$3"
  mv -T "$work/tree" "$tree" || fail "$tree cannot be made; is the disk full?"
}
