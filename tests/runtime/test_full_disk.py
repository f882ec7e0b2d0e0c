"""A full disk under the directory of a run: the run waits for room, and goes on. The disk is a small one in memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 120.0
MOUNT = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
PROGRAM = """
import io, sys, time
from pathlib import Path
import flux

class Keeping(io.StringIO):
    def write(self, text):
        sys.__stderr__.write(text)
        return super().write(text)

disk, sys.stderr = Path(sys.argv[1]), Keeping()
flow = flux.Dataflow("full")
rows = flow.source(flux.sources.Table([{"k": n % 7} for n in range(6_000)], rate=2_000))
rows.exchange("k").filter(lambda row: True).sink(flux.sinks.Collect())
with flow.start(sites=2) as run:
    run.wait_for_output(100)
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
    while "The run waits for room there" not in sys.stderr.getvalue():
        assert run._run_state.error is None, run._run_state.error
        time.sleep(0.01)
    (disk / "ballast").unlink()
    report = run.wait(60)
    print(report.outputs, len(report.failures))
"""


def can_mount() -> bool:
    command = [*MOUNT, "mount -t tmpfs tmpfs /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="this system lets no user mount a disk of its own")
def test_a_run_waits_for_room_on_the_disk_of_its_journals(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    script = 'mount -t tmpfs -o size=2m tmpfs /mnt && TMPDIR=/mnt exec "$0" "$1" /mnt'
    ended = subprocess.run(
        [*MOUNT, script, sys.executable, str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "6000 0\n"), ended.stderr
