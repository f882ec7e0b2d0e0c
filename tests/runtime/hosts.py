"""Hosts: machines of our own, as network namespaces on one switch, whose cables can be pulled."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NEW_NET = 0x40000000  # CLONE_NEWNET


class Hosts:
    """`names` on one switch, which has a namespace of its own: nothing of theirs reaches this machine's network."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._prefix = f"flux-{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._names = names

    def set_up(self) -> None:
        """Raises CalledProcessError where that is not permitted."""
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "dev", "bridge0", "up")
        for name in self._names:
            own = self.namespace(name)
            _ip("netns", "add", own)
            _ip("link", "add", "eth0", "netns", own, "type", "veth", "peer", "name", name, "netns", self._switch)
            _ip("-n", self._switch, "link", "set", "dev", name, "master", "bridge0", "up")
            _ip("-n", own, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", own, "link", "set", "dev", device, "up")

    def take_down(self) -> None:
        for name in (self._switch, *map(self.namespace, self._names)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def address(self, name: str) -> str:
        return f"10.200.0.{self._names.index(name) + 1}"

    def call(self, name: str) -> list[str]:
        """What stands before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def on(self, name: str, function: Callable[[], Any]) -> Any:
        """What `function` returns when it is called on a host, in a thread that has moved there."""

        def moved() -> Any:
            with Path(f"/run/netns/{self.namespace(name)}").open() as there:
                if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _NEW_NET):
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace(name)}")
            return function()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(moved).result()

    def unplug(self, name: str) -> None:
        """Pull a host's cable: connections stand, and nothing comes through."""
        _ip("-n", self._switch, "link", "set", "dev", name, "down")

    def plug_in(self, name: str) -> None:
        _ip("-n", self._switch, "link", "set", "dev", name, "up")

    def part(self, one: str, other: str) -> None:
        """Two hosts cannot reach each other any more, and everybody else reaches both."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self.namespace(here), "route", "add", "blackhole", f"{self.address(there)}/32")


@contextmanager
def hosts(*names: str) -> Iterator[Hosts | None]:
    """Such hosts; None where this user may not make any."""
    made = Hosts(names)
    try:
        if shutil.which("ip") is None:
            yield None
            return
        try:
            made.set_up()
        except subprocess.CalledProcessError:
            yield None
            return
        yield made
    finally:
        made.take_down()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
