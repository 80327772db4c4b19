"""Write the bill of materials of a release, in CycloneDX's format, from the lock.

``sbom.py DIRECTORY`` lists what the extras install, in the versions that the tests ran with and with their hashes; not
what development needs.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ITSELF = "postroom (pyproject.toml)"
_PACKAGE = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"^    #(?: via)? {1,3}(?P<name>\S.*)$")


class Package(NamedTuple):
    """A package of the lock."""

    name: str
    version: str
    hashes: list[str]
    via: list[str]
    """What needs it."""

    @property
    def purl(self) -> str:
        """Its address in the world of package indexes."""
        return f"pkg:pypi/{self.name}@{self.version}"


def packages(lock: str) -> list[Package]:
    """The packages of a lock that uv wrote."""
    found: list[Package] = []
    for line in lock.splitlines():
        start = _PACKAGE.match(line)
        if start:
            found.append(Package(start["name"], start["version"], [], []))
        elif found:
            found[-1].hashes.extend(_HASH.findall(line))
            found[-1].via.extend(match["name"] for match in [_VIA.match(line)] if match and match["name"] != "via")
    return found


def installed(lock: list[Package]) -> list[Package]:
    """Those of them that users install: what the project needs, and what that needs."""
    names = {one.name for one in lock if ITSELF in one.via}
    before = 0
    while len(names) > before:
        before = len(names)
        names |= {one.name for one in lock if names & set(one.via)}
    return [one for one in lock if one.name in names]


def bill(project: dict[str, Any], lock: list[Package]) -> dict[str, Any]:
    """The bill of materials of the project, in CycloneDX 1.6."""
    parts = installed(lock)
    itself = f"pkg:pypi/{project['name']}@{project['version']}"
    # A package may be there in several versions, each for some versions of Python.
    needs = {one.purl: [other.purl for other in parts if one.name in other.via] for one in parts}
    needs[itself] = [one.purl for one in parts if ITSELF in one.via]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": itself,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": itself,
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": one.purl,
                "name": one.name,
                "version": one.version,
                "purl": one.purl,
                # One for each wheel and source distribution, any of which an installer may take.
                "properties": [{"name": "postroom:distribution:sha256", "value": one_hash} for one_hash in one.hashes],
            }
            for one in parts
        ],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needed)} for ref, needed in sorted(needs.items())],
    }


def main() -> int:
    """Write the bill of this project."""
    [directory] = sys.argv[1:]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = packages((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    target = Path(directory) / f"{project['name']}-{project['version']}.cdx.json"
    target.write_text(f"{json.dumps(bill(project, lock), indent=2)}\n", encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
