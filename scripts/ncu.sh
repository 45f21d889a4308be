#!/usr/bin/env bash
# Nsight Compute over the cases of a scenario: their times, then what the hardware counted of each kernel.
#
#   scripts/ncu.sh SCENARIO [OPTION...]      e.g. scripts/ncu.sh bias_add --only 'bias_add/index64/*'
#   scripts/ncu.sh SCENARIO --print          prints the command lines of ncu and runs nothing
#   scripts/ncu.sh --import FILE             shows a .ncu-rep file, or the CSV of its raw page
#
# All arguments go to `harness profile ncu`, whose exit code it ends with.
set -euo pipefail

(($#)) || { echo "usage: scripts/ncu.sh SCENARIO [OPTION...]" >&2; exit 2; }
exec harness profile ncu "$@"
