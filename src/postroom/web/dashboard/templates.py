"""Pages from templates, and the few files that they need. Everything is escaped, and an unknown name is an error."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from postroom.web.dashboard import charts, formats
from postroom.web.dashboard.acts import saga_ref

HERE = Path(__file__).parent


class StaticFile(NamedTuple):
    """A file as it is sent."""

    content: bytes
    type: str
    version: str


class Templates:
    """Renders pages."""

    def __init__(self) -> None:
        self.files = _static_files(HERE / "static")
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "html"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(formats.FILTERS)
        self._environment.globals.update(
            static=self._static,
            throughput=charts.throughput,
            spark=charts.spark,
            counted=formats.counted,
            saga_ref=saga_ref,
        )

    def render(self, name: str, **values: Any) -> str:
        """A whole page."""
        return self.template(name).render(values)

    def template(self, name: str) -> Template:
        """A template, to be rendered in parts."""
        return self._environment.get_template(f"{name}.html")

    def _static(self, name: str) -> Markup:
        """The address of a file, which changes with its content: browsers may keep it for ever."""
        return Markup("static/{}?v={}").format(name, self.files[name].version)


def _static_files(folder: Path) -> dict[str, StaticFile]:
    found: dict[str, StaticFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            name = path.relative_to(folder).as_posix()
            found[name] = StaticFile(content, kind, hashlib.sha256(content).hexdigest()[:12])
    return found
