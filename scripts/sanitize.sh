#!/usr/bin/env bash
# All kernels under compute-sanitizer: out-of-bounds and misaligned accesses, races in shared memory, and reads of
# memory that nothing wrote. Runs the GPU tests of the ops but those of more than 2^31 elements, which would take hours.
#
#   scripts/sanitize.sh            all three tools
#   scripts/sanitize.sh memcheck   one of them
set -euo pipefail
cd "$(dirname "$0")/.."
command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer isn't on the PATH; it comes with the CUDA toolkit" >&2; exit 4; }

for tool in ${*:-memcheck racecheck initcheck}; do
  echo "== $tool"
  options=(--error-exitcode 9 --print-limit 20)
  # Bindings newer than the driver ask it for functions that it lacks, which memcheck would count as errors.
  if [ "$tool" = memcheck ]; then options+=(--report-api-errors no); fi
  # torch's own kernels aren't what is checked, and one of its sums trips racecheck. Only initcheck must see what they write.
  if [ "$tool" != initcheck ]; then options+=(--kernel-name-exclude kns=at6native); fi
  # torch's caching allocator would hide an access past the end of a tensor, so each tensor gets its own allocation.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" "${options[@]}" \
    python3 -m pytest -q -m gpu -p no:cacheprovider tests/collection/ops -k "not 2_to_31"
done
