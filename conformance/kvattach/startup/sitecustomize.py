"""Python imports this at the start of every process below `kvspec attach`, instead of the site's own module.

It is in a separate folder, which the command puts before all others.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_here = str(Path(__file__).parent.resolve())

try:
    from kvattach import plugins
except ImportError:
    # kvspec is not installed in this Python.
    pass
else:
    plugins.process()

_others = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != _here]
_own = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(importlib.util.module_from_spec(_own))
