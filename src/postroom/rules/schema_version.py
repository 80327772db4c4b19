"""Does this code work with those tables? What the versions that the tables list mean for one version of the code."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

BEGUN = 0
"""The version that is listed while tables are being created, before any other."""


class Fit(Enum):
    """How tables and code fit."""

    UNFINISHED = "their creation was begun, and not finished"
    OUTDATED = "they are older than the code: upgrade them"
    FITS = "they are the code's own, or newer ones that the code still works with"
    NEWER = "they are newer than the code, and no longer work with it: upgrade the code"


def fit(listed: Collection[int], version: int) -> Fit:
    """How tables that list these versions fit code of this version.

    Tables list every version whose code works with them: their own, and older ones for as long as nothing that these
    need has changed. So an upgrade that only adds leaves the older version listed, and old and new relays may run side
    by side; one that does more takes it off the list.
    """
    if version in listed:
        return Fit.FITS
    newest = max(listed, default=BEGUN)
    if newest == BEGUN:
        return Fit.UNFINISHED
    return Fit.OUTDATED if newest < version else Fit.NEWER
