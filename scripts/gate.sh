#!/usr/bin/env bash
# The gate as CI runs it: compares the checkout with a base, and ends as `harness gate` does.
#
#   scripts/gate.sh BASE [SCENARIO...]        e.g. scripts/gate.sh origin/main; the default scenario is `ci`
#
# GATE_OUTPUT  folder of the result. Default: reports/gate
# GATE_NOISE   noise file that CI keeps between jobs. If the file doesn't exist yet, the machine is calibrated
#              first, with 10 blocks of the base against itself, which takes minutes. Default: the file in the cache folder
#              that `harness gate calibrate` writes.
# GATE_ACCEPT  rules whose findings pass, such as "missing work", as --accept takes them. Default: none
set -euo pipefail

base=${1:?usage: scripts/gate.sh BASE [SCENARIO...]}
shift
(($#)) || set -- ci
output=${GATE_OUTPUT:-reports/gate}
noise=()
if [[ -n ${GATE_NOISE:-} ]]; then
  noise=(--noise "$GATE_NOISE")
  if [[ ! -e $GATE_NOISE ]]; then
    # Under another name until it is complete: otherwise CI would keep a part of a calibration for ever.
    rm -f "$GATE_NOISE.part"
    harness gate calibrate "$@" --base "$base" --noise "$GATE_NOISE.part"
    mv "$GATE_NOISE.part" "$GATE_NOISE"
  fi
fi
accept=()
for rule in ${GATE_ACCEPT:-}; do
  accept+=(--accept "$rule")
done
exec harness gate "$@" --base "$base" --output "$output" "${noise[@]}" "${accept[@]}"
