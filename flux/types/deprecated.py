"""Old names of public modules and classes: they keep working for one release and warn with the new name."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

# Modules that a user could import by these names up to release 0.1.
MODULES = {
    "flux.batch": "flux.model.batch",
    "flux.cli": "flux.commands.main",
    "flux.cluster": "flux.async_run",
    "flux.errors": "flux.types.errors",
    "flux.event_time": "flux.model.event_time",
    "flux.hashing": "flux.types.hashing",
    "flux.operator": "flux.model.operator",
    "flux.punctuation": "flux.model.punctuation",
    "flux.report": "flux.driver.report",
    "flux.spark.reader": "flux.spark.sink.reader",
    "flux.spark.stream": "flux.spark.source.spark_stream",
    "flux.spark.writer": "flux.spark.source.writer",
    "flux.status": "flux.driver.status",
    "flux.timers": "flux.model.timers",
    "flux.wrapping": "flux.adapters.wrap",
    "flux.wrapping_bytewax": "flux.adapters.bytewax",
}


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that `old` is called `new` now."""
    warnings.warn(f"{old} is called {new} now; the next release removes the old name", DeprecationWarning, stacklevel)


def renamed_attributes(module: str, names: Mapping[str, str], public: str = "") -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds old names: `names` maps each to its module and new name.

    Users import the new names from the module `public`, if it is not the same module.
    """

    def getattr_(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where, _, new = names[name].rpartition(".")
        warn_renamed(f"{module}.{name}", f"{public or module}.{new}")
        return getattr(importlib.import_module(where), new)

    return getattr_


class _OldModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module by its old name; consulted only when no module has the name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in MODULES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(MODULES[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state  # The import system has set that of the old name.
        warn_renamed(spec.name, MODULES[spec.name])


def find_old_modules() -> None:
    """Make `import` find modules by their old names, too."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())
