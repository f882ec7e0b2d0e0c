"""Trial session: a session of pytest whose tests are collected once, and run in forks, as mutants need them."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import tempfile
from collections.abc import Callable, Sequence

import pytest

from ..types.errors import FluxError
from .unit_tests import source_tree

__all__ = ["TrialSession", "in_trial_session", "print_nothing"]

_PLAIN = ("-s", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")


class TrialSession:
    """The tests that were collected. Flux and all that they need has been imported."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}

    def pass_here(self, names: Sequence[str]) -> bool:
        """Run tests in this process, a fork, until one fails; return whether all pass."""
        items = [self._items[name] for name in names if name in self._items]
        for item, following in zip(items, [*items[1:], None], strict=False):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._session.testsfailed:
                return False
        return True


class _Plugin:
    """Uses the session in place of running its tests."""

    def __init__(self, use: Callable[[TrialSession], None]) -> None:
        self._use = use
        self.error: BaseException | None = None
        self.has_run = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.has_run = True
        gc.collect()
        gc.freeze()  # A fork that collects garbage does not copy what is there before it.
        try:
            self._use(TrialSession(session))
        except BaseException as error:  # Pytest would print it and go on.
            self.error = error
        finally:
            gc.unfreeze()
        return True


def in_trial_session(tests: Sequence[str], use: Callable[[TrialSession], None]) -> None:
    """Collect tests by files and folders, and call `use`, which forks."""
    plugin, printed, before = _Plugin(use), io.StringIO(), os.getcwd()
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(printed):
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = directory
        os.chdir(source_tree())
        try:
            pytest.main([*_PLAIN, *tests], plugins=[plugin])
        finally:
            os.chdir(before)
    if plugin.error is not None:
        raise plugin.error
    if not plugin.has_run:
        raise FluxError(f"the tests could not be collected: {printed.getvalue()[-2_000:]}")


def print_nothing() -> None:
    """Have this process, a fork, print nothing."""
    null = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(null, output)
