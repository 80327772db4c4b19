"""Check a live system, as `postroom doctor` does.

::

    report = examine("postgresql://…/shop", "nats://…")
    if report.failed():
        for result in report:
            print(result.code, result.verdict, result.evidence, result.remedy)
"""

from postroom.doctor.examination import LIMIT, examine, select
from postroom.doctor.registry import CHECKS, Check
from postroom.doctor.results import Report, Result, as_json
from postroom.rules.checks.findings import Verdict
from postroom.store.schema.purposes import Purpose

__all__ = ["CHECKS", "LIMIT", "Check", "Purpose", "Report", "Result", "Verdict", "as_json", "examine", "select"]
