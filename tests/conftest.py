"""Options shared by all tests."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

# How long an example takes says something about the machine and nothing about the code.
settings.register_profile("flux", deadline=None)
settings.load_profile("flux")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what happens into tests/interactions/*.txt instead of comparing; review the diff",
    )


@pytest.fixture
def limit_file_size() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """A disk that is full, for this process: no file may grow beyond so many bytes."""

    @contextlib.contextmanager
    def limited(size_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
