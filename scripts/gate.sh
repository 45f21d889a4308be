#!/usr/bin/env bash
# The gate as CI runs it: compares the checkout with a base, and ends as `harness gate` does.
#
#   scripts/gate.sh BASE [SCENARIO...]        e.g. scripts/gate.sh origin/main; the scenario is `ci` unless told
#
# GATE_OUTPUT  folder of the result; reports/gate unless told
# GATE_NOISE   file of noise floors that CI keeps between jobs. If it isn't there yet the machine is calibrated first, with
#              5 blocks of the base against itself, which takes minutes. Without it floors are in the cache folder, where
#              `harness gate calibrate` leaves them.
set -euo pipefail

base=${1:?usage: scripts/gate.sh BASE [SCENARIO...]}
shift
(($#)) || set -- ci
output=${GATE_OUTPUT:-reports/gate}
noise=()
if [[ -n ${GATE_NOISE:-} ]]; then
  noise=(--noise "$GATE_NOISE")
  if [[ ! -e $GATE_NOISE ]]; then
    # Under another name until it's whole: CI would keep half of a calibration for ever.
    rm -f "$GATE_NOISE.part"
    harness gate calibrate "$@" --base "$base" --noise "$GATE_NOISE.part"
    mv "$GATE_NOISE.part" "$GATE_NOISE"
  fi
fi
exec harness gate "$@" --base "$base" --output "$output" "${noise[@]}"
