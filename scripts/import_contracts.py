"""A kind of import contract that import-linter lacks: a package that imports the standard library only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from importlinter import Contract, ContractCheck, fields, output

if TYPE_CHECKING:
    from grimp import ImportGraph


class StandardLibraryOnly(Contract):
    """The modules of `package` import the standard library, each other and `allowed`; nothing else."""

    package = fields.StringField()
    allowed = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002, FBT001 - the base class's signature
        """Look at every direct import; a package that does not exist yet keeps the contract."""
        package = str(self.package)
        modules = {package, *graph.find_descendants(package)} & graph.modules
        broken = sorted(
            f"{module} imports {imported}"
            for module in modules
            for imported in graph.find_modules_directly_imported_by(module)
            if not self._may_import(imported)
        )
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name each import that breaks the contract."""
        for line in check.metadata["broken"]:
            output.print_error(f"- {line}", bold=False)
        output.new_line()

    def _may_import(self, imported: str) -> bool:
        within = (str(self.package), *(str(name) for name in self.allowed))  # type: ignore[attr-defined] # a field is its value by now
        return imported.partition(".")[0] in sys.stdlib_module_names or any(
            imported == name or imported.startswith(f"{name}.") for name in within
        )
