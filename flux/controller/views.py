"""The journal of views: every view is in it before anybody is sent it, with where its nodes listen.

A controller that is started again begins with the last one, and sends each node those it has not seen. The journal
survives the death of the process; of the machine only with `fsync`, which costs milliseconds for each view.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack

from ..errors import FluxError
from ..journal import Journal
from ..protocols.messages import View
from ..wire.codec import from_plain, to_plain


class Views:
    """The views published so far, in order; kept at `path`."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self._journal, records = Journal.open(path, fsync=fsync)
        self._views: list[View] = []
        self.addresses: dict[str, str] = {}
        for record in records:
            view, self.addresses = _decode(path, record.content)
            self._views.append(view)

    @property
    def last(self) -> View | None:
        return self._views[-1] if self._views else None

    def append(self, view: View) -> None:
        """Make `view` the last one; on return it and the addresses are safe."""
        self._journal.append(msgpack.packb([to_plain(view, _no_body), self.addresses]))
        self._views.append(view)

    def behind(self, number: int, node: str) -> list[View]:
        """The views with a higher number that list `node`."""
        return [view for view in self._views if view.number > number and node in view.nodes]


def _decode(path: Path, content: bytes) -> tuple[View, dict[str, str]]:
    plain, addresses = msgpack.unpackb(content, use_list=False)
    view = from_plain(plain, _no_body)
    if not isinstance(view, View):
        raise FluxError(f"{path} is the journal of a controller, and holds {view!r:.200}. Remove it and run anew")
    return view, addresses


def _no_body(body: Any) -> Any:
    raise AssertionError("a view has no body")
