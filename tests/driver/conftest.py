"""The fixtures of tests with real processes, for the driver's own."""

from tests.runtime.conftest import fake, processes

__all__ = ["fake", "processes"]
