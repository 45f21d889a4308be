#!/usr/bin/env bash
# Try many new examples of each property test: scripts/fuzz.sh [EXAMPLES]; 2000 unless told. Needs no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export HYPOTHESIS_EXAMPLES="${1:-2000}"
exec .venv/bin/pytest -m "hypothesis and not gpu" -n auto --timeout 3600 tests
