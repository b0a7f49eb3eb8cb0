#!/usr/bin/env bash
# Mutation testing of kvspec with mutmut: copies the packages into the layout that mutmut knows, and runs it there.
# What is left in build/mutation can be looked at with `mutmut results` and `mutmut show NAME` in that folder.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
venv=$PWD/.venv
rm -rf build/mutation
mkdir -p build/mutation/src
cp -r spec/kvspec reference/kvref conformance/kvconform cuda_impl/kvcuda build/mutation/src/
cp -r tests build/mutation/tests
cp tests/mutation/pyproject.toml build/mutation/
cd build/mutation
# Few walks for each mutant, because there are thousands of mutants.
KVSPEC_TEST_SEEDS=${KVSPEC_TEST_SEEDS:-8} "$venv/bin/mutmut" run "$@"
