"""The page that teaches all of this says what happens; and the fixtures do what the command line says.

It takes half a minute: the examples of the page are whole checks.
"""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_examples_of_the_page_give_what_it_says() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testfile(str(ROOT / "docs" / "testing.rst"), module_relative=False, optionflags=options)
    assert result.attempted > 15
    assert result.failed == 0


TESTS = """
import flux
from hypothesis import strategies as st

class Twice(flux.KeyedOperator):
    output = {"n": "int64"}

    def on_tuple(self, key, row, state):
        return None, [{"n": 2 * row.n}]

def test_operator(check_operator):
    checked = check_operator(Twice, rows=st.fixed_dictionaries({"n": st.integers(0, 9)}))
    print("examples", checked.examples)

def test_flow(simulate):
    flow = flux.Dataflow("twice")
    flow.source(flux.sources.Table([{"n": 7}])).exchange("n", partitions=2).apply(Twice).sink(flux.sinks.Null())
    print("seeds", simulate(flow).seeds)
"""


def test_the_fixtures_do_what_the_command_line_says(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["flux.testing.fixtures"]\n')
    (tmp_path / "test_twice.py").write_text(TESTS)
    pytest = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    command = [*pytest, "--flux-examples", "3", "--flux-seed", "4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "examples 3" in done.stdout
    assert "seeds 1" in done.stdout and "=> all invariants hold" in done.stdout
