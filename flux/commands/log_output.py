"""What the `flux` logger says, on standard error: as text, or as one JSON document per line for programs.

As a library Flux is quiet: who uses it from a program of theirs sets up logging as they do for everything else.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")

# What every record has; anything else was given by who logged it, and is told too.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add(parser: argparse.ArgumentParser) -> None:
    """Offer --log-level and --log-json."""
    group = parser.add_argument_group("logging")
    group.add_argument("--log-level", choices=LEVELS, default="warning", help="what to log (default: warning)")
    group.add_argument("--log-json", action="store_true", help="log one JSON document per line")


def set_up(options: argparse.Namespace) -> None:
    """Log as the options say; those of a command that has none, as they are by default."""
    log = logging.getLogger("flux")
    for handler in [handler for handler in log.handlers if isinstance(handler, _Standard)]:
        log.removeHandler(handler)
    handler = _Standard()
    handler.setFormatter(JsonLines() if getattr(options, "log_json", False) else _Text())
    log.addHandler(handler)
    log.setLevel(getattr(options, "log_level", "warning").upper())


class _Standard(logging.StreamHandler):  # type: ignore[type-arg]
    """To standard error, whichever it is when something is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _Text(logging.Formatter):
    """A line for people; in a terminal it takes the place of the line that tells the progress."""

    def __init__(self) -> None:
        erase = "\x1b[K" if sys.stderr.isatty() else ""
        super().__init__(f"{erase}%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and whatever else it was given.

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
        document |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)
