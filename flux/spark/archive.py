"""The package as one archive that Spark ships to its executors, for `--py-files` and `addPyFile`.

    python -m flux.spark.archive flux.zip

It holds only Flux. The packages that Flux needs (trio, msgpack, sortedcontainers, pyarrow, numpy) must be installed on
the executors, or shipped with ``--archives``; docs/spark.rst says how.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path

from ..storage.private import private_directory
from ..types.errors import FluxError

PACKAGE = Path(__file__).parent.parent


def is_archived() -> bool:
    """Whether this process imported Flux from an archive, which Spark has then shipped to all executors."""
    return not PACKAGE.is_dir()


def write_archive(path: str | os.PathLike[str]) -> None:
    """Write the package, source and compiled, to the zip file `path`."""
    if is_archived():
        raise FluxError(f"Flux is already an archive here, {PACKAGE.parent}: use that one")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as scratch:
        compiled = os.path.join(scratch, "module.pyc")
        for source in _sources():
            name = str(Path("flux") / source.relative_to(PACKAGE))
            archive.write(source, name)
            # Otherwise every worker of every executor would compile each module that it imports.
            py_compile.compile(str(source), compiled, dfile=name, doraise=True)
            archive.write(compiled, f"{name}c")


def archive() -> str:
    """Return the path of an archive of the current package; written once, and again when a file has changed."""
    state = repr([(str(path), path.stat().st_mtime_ns) for path in _sources()]) + importlib.util.MAGIC_NUMBER.hex()
    name = f"flux-{hashlib.sha256(state.encode()).hexdigest()[:16]}.zip"
    folder = Path(tempfile.gettempdir()) / f"flux-archives-{os.getuid()}"
    # Code that another user puts there would run on every executor.
    private_directory(folder, "Remove it, or set TMPDIR to another directory for temporary files")
    path = folder / name
    if not path.exists():
        fresh = folder / f"{name}.{os.getpid()}"
        write_archive(fresh)
        fresh.rename(path)
    return str(path)


def _sources() -> list[Path]:
    # Not `rglob`: protocols and spec may be links, which it does not follow.
    found = []
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        found += [Path(folder) / name for name in names if name.endswith((".py", ".typed"))]
    return sorted(path for path in found if path.suffix == ".py")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m flux.spark.archive FILE.zip")
    write_archive(sys.argv[1])
