#!/usr/bin/env bash
# Mutation testing with mutmut: copies the packages into the layout that mutmut knows, and runs it there.
#   run.sh [kvspec|kvref] [ARGUMENTS OF `mutmut run`...]
# What is left in build/mutation can be looked at with `mutmut results` and `mutmut show NAME` in that folder.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
package=kvspec
case ${1:-} in kvspec | kvref) package=$1 && shift ;; esac
venv=${VIRTUAL_ENV:-$PWD/.venv}
mutation=$PWD/tests/mutation
rm -rf build/mutation
mkdir -p build/mutation/src
cp -r spec/kvspec reference/kvref conformance/kvconform cuda_impl/kvcuda build/mutation/src/
cp -r tests build/mutation/tests
cp "$mutation/$package.toml" build/mutation/pyproject.toml
cp "$mutation/golden_first.py" build/mutation/conftest.py
cd build/mutation
find "src/$package" -name '*.py' -exec "$venv/bin/python" "$mutation/undecorated.py" {} +

# The same draws for each mutant, and few of them, because there are thousands. A mutant that eats memory ends early.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 CI=1 KVSPEC_CONTRACTS=0 KVSPEC_TEST_SEEDS=${KVSPEC_TEST_SEEDS:-8}
unset PYTHONPATH
ulimit -v 6000000
"$venv/bin/mutmut" run "$@"
"$venv/bin/python" "$mutation/score.py" .
