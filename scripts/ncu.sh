#!/usr/bin/env bash
# Cases under Nsight Compute, from a checkout: times first, then hardware counters beside them.
#
#   scripts/ncu.sh SCENARIO... [--only GLOB] [--variants NAMES]        all options of `harness profile ncu`
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 -m harness profile ncu "$@"
