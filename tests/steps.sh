# A script sources steps.sh to run steps. The script goes on after a step that fails, so that one
# run shows all failures.

steps_summary=""
steps_failed=0

# step TITLE COMMAND... runs a command and notes its result and its seconds.
step() {
  local title=$1 began=$SECONDS result=ok
  shift
  echo
  echo "== $title"
  "$@" || { result=FAILED; steps_failed=$((steps_failed + 1)); }
  steps_summary="$steps_summary$(printf '  %-7s %4d s  %s' $result $((SECONDS - began)) "$title")"$'\n'
}

# steps_end TITLE prints one line for each step and one for the whole. It exits with 1 if a step
# has failed.
steps_end() {
  echo
  printf %s "$steps_summary"
  if [ $steps_failed != 0 ]; then
    echo "FAILED: $steps_failed of the steps above, after $SECONDS s"
    exit 1
  fi
  echo "PASSED: $1, in $SECONDS s"
}
