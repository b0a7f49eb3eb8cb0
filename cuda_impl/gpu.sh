#!/usr/bin/env bash
# What needs a GPU, in three parts that each end within ten minutes:
#   gpu.sh check      vectors, tests, benchmarks; the canary's among both
#   gpu.sh stress     compute-sanitizer, fuzz, soak
#   gpu.sh profile    ncu on one operation of the benchmark (OPERATION, PAGE_SIZE)
# A step that fails does not keep the next ones from running. All that is printed is in OUT/PART.log too (build/gpu).
# PYTHON is the interpreter. With SITE, a folder, nothing is installed into it: SITE is filled from the wheels in
# WHEELS (build/wheels), without a package index, and the packages are taken from this tree. PATIENCE, a number,
# multiplies the time that each step may take: for a trial without a GPU, in the interpreter.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
part=${1:-}
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
site=${SITE:-}
wheels=${WHEELS:-build/wheels}
export PYTHONUNBUFFERED=1
failed=0
summary=()

step() { # NAME SECONDS COMMAND...
    local name=$1 limit=$(($2 * ${PATIENCE:-1})) begin=$SECONDS status=0
    shift 2
    printf '\n==> %s, at most %s s\n' "$name" "$limit"
    timeout --kill-after=5 "$limit" "$@" || status=$?
    summary+=("$(printf '%-28s %4d s  %s' "$name" $((SECONDS - begin)) \
        "$(case $status in 0) echo passed ;; 124 | 137) echo 'ran out of time' ;; *) echo "failed ($status)" ;; esac)")")
    ((status == 0)) || failed=1
}

site_is_there() {
    [[ -n $site ]] || return 0
    export PYTHONPATH=$PWD/spec:$PWD/reference:$PWD/cuda_impl:$PWD/conformance:$site
    [[ -e $site/.complete ]] && return 0
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --upgrade \
        --target "$site" "$wheels"/*.whl && touch "$site/.complete"
}

check() {
    local workers=() release=()
    "$python" -c 'import xdist' 2>/dev/null && workers=(-n auto)
    [[ -d $site/sglang ]] && release=(--sglang "$site")
    step vectors 90 "$python" -m kvcli run --impl cuda
    step tests 270 "$python" -m pytest -q -p no:cacheprovider "${workers[@]}" tests/cuda_impl -k 'not long_fuzzing'
    step benchmark 150 "$python" -m benchmarks.device "${release[@]}"
    step 'benchmark of the canary' 80 "$python" -m benchmarks.canary "${release[@]}"
}

stress() {
    local sanitize=(compute-sanitizer --error-exitcode 1 --tool) tests=("$python" -m pytest -q -x -p no:cacheprovider)
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # so that each tensor has bounds of its own
    step 'memcheck, memory' 130 "${sanitize[@]}" memcheck "${tests[@]}" tests/cuda_impl/test_memory.py -k 'not two_to_the_31'
    step 'memcheck, windows' 80 "${sanitize[@]}" memcheck "${tests[@]}" tests/cuda_impl/test_windows.py -k 'not streams'
    step 'racecheck' 110 "${sanitize[@]}" racecheck "${tests[@]}" tests/cuda_impl/test_memory.py \
        tests/cuda_impl/test_canary.py -k 'not two_to_the_31 and not replayed and not captured'
    unset PYTORCH_NO_CUDA_MEMORY_CACHING # a graph needs the cache
    step 'memcheck, graph' 50 "${sanitize[@]}" memcheck "${tests[@]}" tests/cuda_impl/test_graph.py
    step 'memcheck, canary' 60 "${sanitize[@]}" memcheck "${tests[@]}" tests/cuda_impl/test_canary.py
    step fuzz 60 "$python" -m kvcli fuzz --impl cuda --seconds 45 --seed 1
    step soak 95 "$python" -m kvcli soak --impl cuda --minutes 1.2
}

profile() {
    step ncu 400 ncu --clock-control none --kernel-name 'regex:(extend|decode|move)_kernel' --launch-count 12 --set full \
        --force-overwrite --export "$out/ncu" "$python" -m benchmarks.device --repeat 1 \
        --operation "${OPERATION:-free 256 rows}" --page-size "${PAGE_SIZE:-16}"
    step 'what ncu saw' 60 ncu --import "$out/ncu.ncu-rep" --page details
}

run() {
    printf '%s on %s, %s\n' "$part" "$(uname -n)" "$(date -u +%Y-%m-%dT%H:%MZ)"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo 'no GPU: kernels are interpreted'
    site_is_there || return 1
    "$part"
    printf '\n'
    printf '%s\n' "${summary[@]}"
    return "$failed"
}

case $part in check | stress | profile) ;; *) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;; esac
mkdir -p "$out" || exit 2
run 2>&1 | tee "$out/$part.log"
