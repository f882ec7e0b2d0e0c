"""Edition code: modules that are imported again under names of their own, for a change of code while rows flow.

The code that runs stays as it is: its modules are not touched, whatever becomes of their files. A module is read from
its source and run under its name and the hash of what is taken anew together, such as `rules@1f3a09c2`. Among each
other these modules see the new ones; all else they import as ever.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..types.errors import RAISED, ChangeError

_HASH_CHARS = 8  # Of a module's new name.


def source_of(module: str) -> Path:
    """Return the file of a module's source; `ChangeError` if every process could not read it."""
    if module == "__main__":
        raise ChangeError(
            "code of the program that was started cannot be imported by the sites. Put it into a module of its own"
        )
    importlib.invalidate_caches()
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        raise ChangeError(
            f"module {module!r} is not found: {error}. It must be on the Python path of every site"
        ) from error
    if found is None:
        raise ChangeError(f"module {module!r} is not found. It must be on the Python path of every site")
    if found.origin is None or not found.origin.endswith(".py"):
        raise ChangeError(f"module {module!r} is in {found.origin}: a change of code needs its source, a .py file")
    return Path(found.origin)


def hash_of(module: str) -> str:
    """Return the hash of a module's source as it is now."""
    return hashlib.sha256(_read(module)).hexdigest()


def _read(module: str) -> bytes:
    path = source_of(module)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ChangeError(f"module {module!r}: {path} cannot be read: {error.strerror or error}") from error


def reference_to(made: Any, what: str) -> str:
    """Return `module:name` of a class or function; `ChangeError` if no other process could find it there."""
    if isinstance(made, str):
        module, colon, name = made.partition(":")
        if not (module and colon and name):
            raise ChangeError(f"{what} is {made!r}; expected 'module:name', or a class or function of a module")
        return made
    home, called = getattr(made, "__module__", None), getattr(made, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(called, str) or not callable(made):
        raise ChangeError(f"{what} is {made!r:.200}; expected a class or function of a module, or 'module:name'")
    if "<" in called:
        raise ChangeError(
            f"{what} is {called}, which is made while the program runs: no site can import it. Put it into a module, "
            "at its top level"
        )
    if home == "__main__":
        raise ChangeError(
            f"{what} is {called} of the program that was started: no site can import it. Put it into a module"
        )
    return f"{home.partition('@')[0]}:{called}"


class EditionCode:
    """The modules of a process that were taken anew; each set of sources is run once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[tuple[str, str], ...], dict[str, ModuleType]] = {}

    def load(self, reference: str, sources: Iterable[tuple[str, str]]) -> Any:
        """Return what `module:name` refers to, in the modules of these sources, each given with its hash."""
        module, _, name = reference.partition(":")
        found: Any = self._group(tuple(sources)).get(module)
        if found is None:
            raise ChangeError(f"{reference}: {module!r} is not among the modules of the change")
        for part in name.split("."):
            if not hasattr(found, part):
                raise ChangeError(f"{reference}: module {module!r} has no {name}")
            found = getattr(found, part)
        return found

    def _group(self, sources: tuple[tuple[str, str], ...]) -> dict[str, ModuleType]:
        if sources not in self._groups:
            texts = {}
            for module, expected in sources:
                texts[module] = _read(module)
                if (got := hashlib.sha256(texts[module]).hexdigest()) != expected:
                    raise ChangeError(
                        f"module {module!r} has another source here ({source_of(module)}, hash {got[:12]}) than where "
                        f"the change was asked for (hash {expected[:12]}). Bring the same source to every machine, and "
                        "ask again"
                    )
            self._groups[sources] = _run(texts, hashlib.sha256(repr(sources).encode()).hexdigest()[:_HASH_CHARS])
        return self._groups[sources]


def _run(texts: Mapping[str, bytes], mark: str) -> dict[str, ModuleType]:
    """Run the sources as modules that see each other; the order is that in which they import each other."""
    group = {module: ModuleType(f"{module}@{mark}") for module in texts}
    begun: set[str] = set()

    def run(module: str) -> ModuleType:
        made = group[module]
        if module in begun:
            return made
        begun.add(module)
        path = source_of(module)
        namespace = vars(made)
        is_package = path.name == "__init__.py"
        namespace["__file__"] = str(path)
        namespace["__package__"] = module if is_package else module.rpartition(".")[0]
        if is_package:
            namespace["__path__"] = [str(path.parent)]
        namespace["__builtins__"] = {**vars(builtins), "__import__": import_module}
        sys.modules[made.__name__] = made  # Where dataclasses, for one, look for the module of a class.
        try:
            exec(compile(texts[module], str(path), "exec", dont_inherit=True), namespace)
        except RAISED as error:
            sys.modules.pop(made.__name__, None)
            raise ChangeError(f"importing module {module!r} ({path}) raised {type(error).__name__}: {error}") from error
        return made

    def import_module(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Iterable[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Import as Python does, but for the modules of the group."""
        full = name
        if level:
            package = str((globals or {}).get("__package__") or "")
            full = importlib.util.resolve_name("." * level + name, package)
        wanted = [each for each in fromlist or () if f"{full}.{each}" in group]
        if full in group:
            if fromlist or "." not in full or level:
                return run(full)
            return _reaching(full, run(full))
        found = builtins.__import__(name, globals, locals, tuple(fromlist or ()), level)
        return _WithNew(found, {each: run(f"{full}.{each}") for each in wanted}) if wanted else found

    for module in group:
        run(module)
    return group


class _WithNew(ModuleType):
    """A package as it is, with some of its modules taken anew."""

    def __init__(self, package: ModuleType, new: Mapping[str, ModuleType]) -> None:
        super().__init__(package.__name__)
        self._own = package
        vars(self).update(new)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _reaching(full: str, module: ModuleType) -> ModuleType:
    """Return what `import a.b.c` gives: the package a, from which the way leads to the module that was taken anew."""
    parts = full.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        module = _WithNew(importlib.import_module(".".join(parts[:depth])), {parts[depth]: module})
    return module
