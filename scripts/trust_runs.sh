#!/usr/bin/env bash
# Make the runs that reports/h200/trust.md has of the check of timed calls, and write the page:
#
#   scripts/trust_runs.sh            on a GPU that nobody else uses, with everything committed; about 6 minutes
#   REPEAT=1 scripts/trust_runs.sh   with one process a case
#
#   trust_before  the cases of trust/cases.txt by the code of HEAD, in which trust/unchecked.patch takes the check out
#   trust_after   the same cases by the code of HEAD
#   trust_faults  a case for each other patch of trust/, which plants a fault in a kernel
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
[ -z "$(git status --porcelain)" ] || { echo "there are changes that aren't committed: commit them, and start again" >&2; exit 2; }

work=$(mktemp -d)
codes=()
cleanup() {
  for code in "${codes[@]}"; do git worktree remove --force "$code"; done
  rm -rf "$work"
}
trap cleanup EXIT

# A worktree of HEAD with patches. The folder is in $code then.
patched() {
  code=$work/$1
  git worktree add --quiet --detach "$code" HEAD
  codes+=("$code")
  for patch in "${@:2}"; do git -C "$code" apply "$PWD/$patch"; done
}

# Measure with the harness that lies in a folder. The rest of the line goes to 'harness run'. Cases that end without a
# time stand on the page, so the other runs are made all the same.
measure() {
  rm -rf "reports/h200/$2"
  PYTHONPATH=$1 "$python" -P -m harness run scenarios --output "reports/h200/$2" "${@:3}" ||
    echo "$2: some cases have no time" >&2
}

only=()
while read -r id; do only+=(--only "$id"); done < scripts/trust/cases.txt
patched before scripts/trust/unchecked.patch
measure "$code" trust_before --repeat "${REPEAT:-3}" "${only[@]}"
measure "$PWD" trust_after --repeat "${REPEAT:-3}" "${only[@]}"

only=()
faults=()
for patch in scripts/trust/*.patch; do
  [ "$patch" = scripts/trust/unchecked.patch ] && continue
  faults+=("$patch")
  only+=(--only "$(sed -n 's/^Case: //p' "$patch")")
done
patched faults "${faults[@]}"
measure "$code" trust_faults "${only[@]}"

"$python" scripts/make_trust.py
"$python" scripts/make_reports.py reports/h200/trust_before reports/h200/trust_after reports/h200/trust_faults
