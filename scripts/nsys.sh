#!/usr/bin/env bash
# Nsight Systems over the cases of a scenario: which kernels each call launches, their times, and the gaps between them.
#
#   scripts/nsys.sh SCENARIO [OPTION...]     e.g. scripts/nsys.sh bias_add --only 'bias_add/index64/*'
#   scripts/nsys.sh SCENARIO --print         prints the command line of nsys and runs nothing
#   scripts/nsys.sh --import FILE            reads a .sqlite or .nsys-rep file that was made elsewhere
#
# All arguments go to `harness profile nsys`, whose exit code it ends with.
set -euo pipefail

(($#)) || { echo "usage: scripts/nsys.sh SCENARIO [OPTION...]" >&2; exit 2; }
exec harness profile nsys "$@"
