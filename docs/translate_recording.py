"""Translate a recording of the commit before the renovation, by the table of renames, so that it can be replayed.

    python docs/translate_recording.py docs/renames.rst OLD.recording NEW.recording

A recording is a sequence of messages and effects as plain values: a class is a map with its name under "$". Names of
classes and fields of `flux.protocols.messages` are replaced as the table has them; the version is that of today. Fields
that are newer than the recording have the values that they have if nothing was started again.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgpack

from flux.protocols.messages import VERSION

_ROW = re.compile(r"\* - ``flux\.protocols\.messages\.([\w.]+)``\n\s+- ``([\w.]+)``")


_NEWER = {
    "Ack": {"reached": 0},
    "Hello": {"version": VERSION},
    "View": {"follows": None, "slow": {"set": []}, "editions": []},
    "Consume": {"edition": 0},
    "Install": {"edition": 0},
    "Pull": {"given_upto": 0},
    "Sourced": {"counts": []},
    "Consumed": {"most": 0, "counts": []},
    "OutputRun": {"counts": []},
}


def table(renames: Path) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """The new name of each message, and of each field by the old name of its message."""
    classes, fields = {}, {}
    for old, new in _ROW.findall(renames.read_text()):
        if "." in old:
            message, field = old.split(".")
            fields[message, field] = new.rpartition(".")[2]
        else:
            classes[old] = new.rpartition(".")[2]
    return classes, fields


def translated(plain: Any, classes: dict[str, str], fields: dict[tuple[str, str], str]) -> Any:
    if isinstance(plain, dict) and "$" in plain:
        old = plain["$"]
        new = {fields.get((old, name), name): translated(value, classes, fields) for name, value in plain.items()}
        new["$"] = classes.get(old, old)
        return new | _NEWER.get(new["$"], {})
    if isinstance(plain, dict):
        return {name: translated(value, classes, fields) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [translated(value, classes, fields) for value in plain]
    return plain


def main(renames: str, old: str, new: str) -> None:
    names = table(Path(renames))
    with Path(old).open("rb") as source, Path(new).open("wb") as target:
        for number, record in enumerate(msgpack.Unpacker(source, use_list=False)):
            record = translated(record, *names)
            target.write(msgpack.packb({"version": VERSION, "number_from": 1, **record} if number == 0 else record))


if __name__ == "__main__":
    main(*sys.argv[1:])
