"""The environment variable `KVSPEC_CANARY` switches the canary on.

KVSPEC_CANARY=log                   violations are logged
KVSPEC_CANARY=raise                 the engine is stopped at the first violation
KVSPEC_CANARY=log,share=8           each pass checks one of eight blocks of positions
KVSPEC_CANARY=log,bytes             the first 16 bytes of each slot's K and V are checked, too; bytes=all: all of them
KVSPEC_CANARY=log,perturb=table     a self-test: see `kvcuda.canary.perturb`
"""

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

VARIABLE = "KVSPEC_CANARY"
"""The environment variable."""

PERTURBATIONS = ("table", "stale", "token", "used", "unused", "copy")


class CanarySwitchError(ValueError):
    """The variable has an unknown value; the message is one line."""


class Setting(NamedTuple):
    """The settings of the canary."""

    stops: bool
    """Whether the engine is stopped at the first violation."""
    share: int = 1
    real: Literal["", "first", "all"] = ""
    """Which bytes of a slot are looked at."""
    perturb: str = ""


def setting(environment: Mapping[str, str] = os.environ) -> Setting | None:
    """The settings in the variable; `None` if the canary is off.

    Raises:
        CanarySwitchError: it makes no sense.
    """
    said = environment.get(VARIABLE, "")
    if not said:
        return None
    mode, *options = said.split(",")
    if mode not in ("log", "raise"):
        raise CanarySwitchError(f"{VARIABLE}={said}: it begins with log or raise")
    found = Setting(mode == "raise")
    for option in options:
        name, _, value = option.partition("=")
        if name == "share" and value.isdigit() and int(value):
            found = found._replace(share=int(value))
        elif option in ("bytes", "bytes=all"):
            found = found._replace(real="all" if value else "first")
        elif name == "perturb" and value in PERTURBATIONS:
            found = found._replace(perturb=value)
        else:
            raise CanarySwitchError(f"{VARIABLE}={said}: {option!r} is none of share=N, bytes, bytes=all, perturb=KIND")
    return found
