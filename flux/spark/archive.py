"""The package as one file that Spark carries to its executors, as `--py-files` and `addPyFile` take it.

    python -m flux.spark.archive flux.zip

It holds Flux alone. What Flux needs besides (trio, msgpack, sortedcontainers, pyarrow, numpy) is installed on the
executors, or travels with ``--archives``; docs/spark.rst says how.
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

from ..types.errors import FluxError

PACKAGE = Path(__file__).parent.parent


def travels_already() -> bool:
    """Whether this process itself has Flux from an archive, which Spark then gave to everybody."""
    return not PACKAGE.is_dir()


def write_archive(path: str | os.PathLike[str]) -> None:
    """Write the package, source and compiled, to the zip file `path`."""
    if travels_already():
        raise FluxError(f"Flux is an archive here, {PACKAGE.parent}: use that one")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as scratch:
        compiled = os.path.join(scratch, "module.pyc")
        for source in _sources():
            name = str(Path("flux") / source.relative_to(PACKAGE))
            archive.write(source, name)
            # Without it, every worker of every executor would compile each module that it imports.
            py_compile.compile(str(source), compiled, dfile=name, doraise=True)
            archive.write(compiled, f"{name}c")


def archive() -> str:
    """The path of an archive of the package as it is now; made once, and again when a file has changed."""
    state = repr([(str(path), path.stat().st_mtime_ns) for path in _sources()]) + importlib.util.MAGIC_NUMBER.hex()
    name = f"flux-{hashlib.sha256(state.encode()).hexdigest()[:16]}.zip"
    folder = Path(tempfile.gettempdir()) / f"flux-archives-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise FluxError(f"{folder} belongs to somebody else; name another directory for temporary files by TMPDIR")
    path = folder / name
    if not path.exists():
        fresh = folder / f"{name}.{os.getpid()}"
        write_archive(fresh)
        fresh.rename(path)
    return str(path)


def _sources() -> list[Path]:
    # By hand, because protocols and spec may be links, which `rglob` does not follow.
    found = []
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        found += [Path(folder) / name for name in names if name.endswith((".py", ".typed"))]
    return sorted(path for path in found if path.suffix == ".py")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m flux.spark.archive FILE.zip")
    write_archive(sys.argv[1])
