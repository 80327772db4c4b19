"""Findings: the verdict of a check, the evidence for it, and what mends it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_NAMED = 3
"""Names that evidence lists before it only counts the rest."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
KILOBYTE = 1024


class Verdict(StrEnum):
    """How a check ended."""

    OK = "OK"
    WARN = "WARN"
    """It works, but will hurt, or waits for somebody."""
    FAIL = "FAIL"
    """It does not work, or loses something."""
    SKIP = "SKIP"
    """It does not apply here, or could not be found out."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found. `remedy` is one command or setting."""

    verdict: Verdict
    evidence: str
    remedy: str = ""
    figures: Mapping[str, object] = field(default_factory=dict)
    """The evidence as numbers, for programs."""
    subject: str = ""
    """Which of several it is about, such as a broker."""


def ok(evidence: str, **figures: object) -> Finding:
    """All is well."""
    return Finding(Verdict.OK, evidence, "", figures)


def warn(evidence: str, remedy: str, **figures: object) -> Finding:
    """It works, but not for long, or somebody should look."""
    return Finding(Verdict.WARN, evidence, remedy, figures)


def fail(evidence: str, remedy: str, **figures: object) -> Finding:
    """It does not work."""
    return Finding(Verdict.FAIL, evidence, remedy, figures)


def skip(reason: str) -> Finding:
    """It does not apply, or could not be found out."""
    return Finding(Verdict.SKIP, reason)


def counted(count: int, noun: str) -> str:
    """So many of them: ``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def named(names: Iterable[str]) -> str:
    """The first of them by name, each once, and how many more there are."""
    those = list(dict.fromkeys(names))
    more = len(those) - MOST_NAMED
    return ", ".join(those[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def lasting(seconds: float) -> str:
    """A time for people: ``12 s``, ``3 min``, ``4 h``, ``2 days``."""
    if seconds < MINUTE:
        return f"{seconds:.3g} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 2 * DAY else f"{seconds / DAY:.0f} days"


def sized(size: int) -> str:
    """A size for people: ``900 bytes``, ``1.5 MB``."""
    if size < KILOBYTE:
        return f"{size} bytes"
    number = float(size)
    for unit in ("kB", "MB"):
        number /= KILOBYTE
        if number < KILOBYTE:
            return f"{number:.3g} {unit}"
    return f"{number / KILOBYTE:.3g} GB"
