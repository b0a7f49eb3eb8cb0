"""Contracts that cost nothing unless asked for.

`require` and `ensure` are icontract's decorators. They check at run time only when the environment variable
`KVSPEC_CONTRACTS` is `1` when kvspec is imported (the tests and `kvspec prove` set it); otherwise the decorated
function is returned as it was.
"""

import os
from functools import partial

import icontract

CHECKED = os.environ.get("KVSPEC_CONTRACTS") == "1"

require = partial(icontract.require, enabled=CHECKED)
ensure = partial(icontract.ensure, enabled=CHECKED)
