"""What a view and its journal cost when many sites have been replaced.

    python -m experiments.replaced [--sites N] [--partitions N] [--replaced 10,100,1000]
    python -m experiments.replaced --run 30

The controller's machine and journal and the machine of a node that outlives them all, without processes: again and
again a further site comes, the oldest one dies, and its copies are rebuilt. Told are the bytes of a view as it is sent
and of the journal, and the milliseconds that one replaced site costs: to make and write its views, and to read and
apply them; then how long a controller takes that is started again. `--run` does it with processes, which are killed,
and compares the output with a plain run's; every tenth time the controller is killed as well.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.soak.stream import Checked, Packets, flow
from experiments.soak.watching import Watch
from flux.controller.controller_process import JOURNAL
from flux.controller.view_journal import ViewJournal
from flux.protocols.controller import Controller
from flux.protocols.ingress import Ingress
from flux.protocols.messages import Closed, CopyReady, Effect, Hello, Publish, View
from flux.protocols.node import Node
from flux.spec.dataflow import declustered
from flux.wire import frames
from flux.wire.membership import NewView, membership_frame, read_from_controller

AVERAGED = 10  # Sites that are replaced while the time is taken.
RATE, POOL_ROWS, PATIENCE_S = 20_000, 32_768, 120.0  # Of a run.
CONTROLLER_EVERY = 10
_HEAD = "replaced   nodes   view bytes   journal bytes   make ms/site   apply ms/site   restart ms"


class Cost(NamedTuple):
    """What is so when `replaced` sites have been."""

    replaced: int
    nodes: int
    view_bytes: int
    journal_bytes: int
    make_ms: float
    apply_ms: float
    restart_ms: float

    def __str__(self) -> str:
        times = f"{self.make_ms:>12.2f}{self.apply_ms:>16.2f}{self.restart_ms:>13.1f}"
        return f"{self.replaced:>8,}{self.nodes:>8,}{self.view_bytes:>13,}{self.journal_bytes:>16,}   {times}"


class Replacing:
    """A dataflow of two stages on `sites` sites, of which one after the other is replaced."""

    def __init__(self, sites: int, partitions: int, directory: Path) -> None:
        self.replaced = 0
        self._path = directory / "controller.journal"
        self._views = ViewJournal(self._path)
        self._sites = [f"site-{number}" for number in range(1, sites + 1)]
        copies = declustered(sites, [partitions, partitions])
        nodes = ("ingress", *self._sites, "egress")
        plan = View(number=0, nodes=nodes, dead=frozenset(), copies=((("ingress",),), *copies, (("egress",),)))
        self._controller = Controller(plan, partitions)
        self._node = Node("ingress", [Ingress("ingress", 1_000)])
        self._make_s = self._apply_s = 0.0
        for node in plan.nodes:
            self._views.addresses[node] = f"unix:/run/flux/{node}"
        self._step(Hello(node="ingress", ends=(0,)), *(Hello(node=node) for node in self._sites))
        self._step(Hello(node="egress", ends=(3,)))

    def replace_one(self) -> None:
        """A further site comes, the oldest one dies, and what it held is rebuilt."""
        self.replaced += 1
        new = f"site-{len(self._sites) + self.replaced}"
        self._views.addresses[new] = f"unix:/run/flux/{new}"
        self._step(Hello(node=new))
        self._step(Closed(node=self._sites.pop(0)))
        self._sites.append(new)
        while self._controller.view.standby:
            standby = self._controller.view.standby[0]
            self._step(CopyReady(node=standby.node, version=standby.version))

    def cost(self) -> Cost:
        """What the next sites cost, each; in the mean."""
        self._make_s = self._apply_s = 0.0
        for _ in range(AVERAGED):
            self.replace_one()
        view = self._controller.view
        sent = frames.encode(self._sent(view))
        journal_bytes = self._path.stat().st_size
        copy = self._path.with_name(f"copy-{self.replaced}")
        copy.write_bytes(self._path.read_bytes())
        began = time.perf_counter()
        assert ViewJournal(copy).last == view
        restart_s = time.perf_counter() - began
        taken = (1_000 * seconds / AVERAGED for seconds in (self._make_s, self._apply_s))
        return Cost(self.replaced, len(view.nodes), len(sent), journal_bytes, *taken, 1_000 * restart_s)

    def _step(self, *messages: Hello | Closed | CopyReady) -> None:
        for message in messages:
            began = time.perf_counter()
            sent = list(self._carry_out(self._controller.step(message)))
            behind = time.perf_counter()
            for header in sent:
                message = read_from_controller(header)
                assert isinstance(message, NewView)
                view = message.view
                self._node.step(view)
                self._views.record_seen("ingress", view.number)
                for site in (*self._sites, "egress"):
                    self._views.record_seen(site, view.number)
            self._make_s += behind - began
            self._apply_s += time.perf_counter() - behind

    def _carry_out(self, effects: Iterable[Effect]) -> Iterable[dict[str, Any]]:
        for effect in effects:
            assert isinstance(effect, Publish), f"nothing else happens here: {effect}"
            self._views.append(effect.view)
            yield frames.decode_header(frames.encode(self._sent(effect.view))[frames.PREFIX.size :])

    def _sent(self, view: View) -> dict[str, Any]:
        return membership_frame(NewView(view=view, addresses=self._views.addresses))


def run(replaced: int, sites: int, partitions: int) -> None:
    """Replace so many sites of a run, one after the other, and print what its view and journal come to."""
    with tempfile.TemporaryDirectory() as directory:
        packets, sink = Packets(Path(directory) / "end"), Checked()
        with flow(packets, sink, partitions, rate=RATE).start(sites=sites, standby=1, pool_rows=POOL_ROWS) as running:
            sink.start()
            watch = Watch(running)
            most_nodes = most_bytes = 0
            print("replaced    view   nodes   journal bytes      most   rows checked")
            for number in range(1, replaced + 1):
                watch.wait_whole()
                running.kill(watch.holders()[0])
                if number % CONTROLLER_EVERY == 0:
                    running.kill("controller")
                running.add_site()
                watch.wait_whole()
                view, size = watch.view(), (running.directory / JOURNAL).stat().st_size
                most_nodes, most_bytes = max(most_nodes, len(view.nodes)), max(most_bytes, size)
                shown = f"{number:>8}{view.number:>8,}{len(view.nodes):>8}{size:>16,}{most_bytes:>10,}"
                print(f"{shown}{sink.checked:>15,}", flush=True)
                sink.raise_if_wrong()
            packets.end(watch.numbered() + 8 * POOL_ROWS)
            running.wait(timeout=PATIENCE_S)
        last = packets.last()
        assert last is not None
        sink.finish(last)
    print(f"exact: {sink.checked:,} rows; at most {most_nodes} nodes in a view and {most_bytes:,} bytes of journal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--replaced", default="10,100,1000")
    parser.add_argument("--run", type=int, metavar="N", help="replace N sites of a run")
    arguments = parser.parse_args()
    if arguments.run is not None:
        run(arguments.run, arguments.sites, arguments.partitions)
        return
    print(_HEAD)
    with tempfile.TemporaryDirectory() as directory:
        replacing = Replacing(arguments.sites, arguments.partitions, Path(directory))
        for number in map(int, arguments.replaced.split(",")):
            while replacing.replaced < number - AVERAGED:
                replacing.replace_one()
            print(replacing.cost(), flush=True)


if __name__ == "__main__":
    main()
