"""The output of the `flux` logger on standard error: as text, or as one JSON document per line for programs.

As a library Flux adds no handler: Python prints warnings on standard error, unless the program configures logging. The
commands add one, which leaves records to the handlers of the root logger if one of those prints them already.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")

# The fields that every record has; all others are extras of the log call, and are written too.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add(parser: argparse.ArgumentParser) -> None:
    """Add --log-level and --log-json."""
    group = parser.add_argument_group("logging")
    group.add_argument("--log-level", choices=LEVELS, default="warning", help="what to log (default: warning)")
    group.add_argument("--log-json", action="store_true", help="log one JSON document per line")


def set_up(options: argparse.Namespace) -> None:
    """Log as the options say; a command without them uses the defaults."""
    log = logging.getLogger("flux")
    for handler in [handler for handler in log.handlers if isinstance(handler, _StderrHandler)]:
        log.removeHandler(handler)
    handler = _StderrHandler()
    handler.setFormatter(JsonLines() if getattr(options, "log_json", False) else _Text())
    log.addHandler(handler)
    log.setLevel(getattr(options, "log_level", "warning").upper())


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler for the `sys.stderr` of the moment, which a program may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        if not any(_prints(handler) for handler in logging.getLogger().handlers):
            self.stream = sys.stderr
            super().emit(record)


def _prints(handler: logging.Handler) -> bool:
    """Return whether a handler writes to the terminal; a module that a command loads may have configured one."""
    return isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout)


class _Text(logging.Formatter):
    """A line for people; in a terminal it replaces the progress line."""

    def __init__(self) -> None:
        erase = "\x1b[K" if sys.stderr.isatty() else ""
        super().__init__(f"{erase}%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and all extra fields.

    >>> up = {"name": "flux", "levelname": "INFO", "msg": "up", "node": "site-1", "created": 0}
    >>> record = logging.makeLogRecord(up)
    >>> JsonLines().format(record)
    '{"time": "1970-01-01T00:00:00+00:00", "level": "info", "logger": "flux", "message": "up", "node": "site-1"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)
