#!/usr/bin/env bash
# run_parts.sh TARGET...: makes every target, whatever becomes of the others, then says how each
# ended. Fails if one failed.
set -uo pipefail

summary=()
failed=()
for part in "$@"; do
  echo "== make $part"
  SECONDS=0
  if "${MAKE:-make}" --no-print-directory "$part"; then
    summary+=("$(printf '   passed %5d s  %s' "$SECONDS" "$part")")
  else
    summary+=("$(printf '   FAILED %5d s  %s' "$SECONDS" "$part")")
    failed+=("$part")
  fi
done

echo "== summary"
printf '%s\n' "${summary[@]}"
if ((${#failed[@]})); then
  echo "== FAILED: ${failed[*]}"
  exit 1
fi
echo "== PASSED: $*"
