"""Python imports this in every process of an engine's server: compiled kernels of GPUs are stood in for.

`KVSPEC_STUBS` names the packages. The folder is for the servers that `kvspec serve` starts, and for nothing else.
"""

import os
import sys
from pathlib import Path

from kvlab.stubs import Finder

_names = [name for name in os.environ.get("KVSPEC_STUBS", "").split(",") if name]
if _names:
    sys.meta_path.insert(0, Finder(_names, [], Path()))
