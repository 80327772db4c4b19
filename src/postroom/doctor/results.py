"""What an examination returns: a result for each check and subject, and the report with all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postroom.rules.checks.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WORST_FIRST = (Verdict.FAIL, Verdict.WARN, Verdict.OK, Verdict.SKIP)


@dataclass(frozen=True, slots=True)
class Result:
    """What a check has found. One that looks at several brokers has a result for each."""

    code: str
    verdict: Verdict
    evidence: str
    remedy: str
    """One command or setting that mends it; empty if all is well."""
    docs: str
    """A page of the documentation, with its heading: ``docs/guide/troubleshooting.md#dead-letters``."""
    group: str
    subject: str = ""
    """What it is about if there are several, such as a broker's address."""
    figures: Mapping[str, object] = field(default_factory=dict)
    """The evidence as numbers, for programs."""
    seconds: float = 0.0
    """How long the check took."""


@dataclass(frozen=True, slots=True)
class Report:
    """All results, in the order of the checks. Iterate over it for them."""

    results: tuple[Result, ...]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def count(self, verdict: Verdict) -> int:
        """How many results have this verdict."""
        return Counter(result.verdict for result in self.results)[verdict]

    @property
    def verdict(self) -> Verdict:
        """The worst one."""
        return next((verdict for verdict in _WORST_FIRST if self.count(verdict)), Verdict.OK)

    def failed(self, *, strict: bool = False) -> bool:
        """Whether a check failed; if `strict`, a warning counts too."""
        return self.count(Verdict.FAIL) > 0 or (strict and self.count(Verdict.WARN) > 0)


def as_json(report: Report) -> dict[str, Any]:
    """The report in the form that ``postroom doctor --json`` prints."""
    return {
        "verdict": report.verdict.value,
        "counts": {verdict.value: report.count(verdict) for verdict in _WORST_FIRST},
        "checks": [
            {
                "code": one.code,
                "group": one.group,
                "subject": one.subject or None,
                "verdict": one.verdict.value,
                "evidence": one.evidence,
                "remedy": one.remedy or None,
                "docs": one.docs,
                "figures": dict(one.figures),
                "seconds": one.seconds,
            }
            for one in report
        ],
    }
