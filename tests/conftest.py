"""Options and fixtures shared by all tests."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

DEADLINE_S = 60
EVERY_DAY = "not gauntlet and not long"  # As setup.cfg has it.

# How long an example takes says something about the machine and nothing about the code.
settings.register_profile("flux", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None)  # For `make test-all`: --hypothesis-profile=thorough.
settings.load_profile("flux")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what happens into tests/interactions/*.txt instead of comparing; review the diff",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A test that is named is run, also if it is one of `make test-all`.
    if config.option.markexpr == EVERY_DAY and any("::" in argument for argument in config.args):
        config.option.markexpr = ""


@pytest.fixture
def deadline() -> Iterator[None]:
    """Processes that do not answer fail the test that waits for them, not the whole suite."""

    def give_up(signum: int, frame: object) -> None:
        raise TimeoutError(f"the test did not end within {DEADLINE_S} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


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
