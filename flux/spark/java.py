"""A check for the Java that Spark needs, which fails with one line instead of a stack trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ..types.errors import FluxError

__all__ = ["check_java"]

JAVA_VERSION_MIN = 17
_INSTALL = (
    "Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME"
)
_TIMEOUT_S = 60.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> int:
    """Return the version of the Java that Spark will use, or raise `FluxError` with what to install."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"in JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise FluxError(f"Spark needs Java {JAVA_VERSION_MIN} or later, and there is none {where}. {_INSTALL}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stderr
    found = _VERSION.search(output)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        version = f"version {found[1]}" if found else f"{output.strip()[:100]!r}"
        raise FluxError(f"Spark needs Java {JAVA_VERSION_MIN} or later, and {java} is {version}. {_INSTALL}")
    return int(found[1])
