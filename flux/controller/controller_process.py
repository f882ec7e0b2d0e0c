"""The controller process: it passes the messages of every node to its machine, and carries out the effects.

Every view is in the journal before it is sent to any node. A restarted controller begins with the last view, waits for
the nodes in it to reconnect, and sends each the views it has not seen. It numbers new views from the time of day in
milliseconds. That is above what any earlier controller has given, because they make far fewer than a thousand views in
a second. Nodes carry on while there is no controller.

A node is gone when its connection closes; it is suspected when its heartbeats stop; two nodes are cut off from each
other when both keep reporting so. The machine decides what follows from that. A node that is declared dead and still
lives is dismissed, and ends.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Any

import trio

from ..balance import BalancePolicy, make_policy
from ..plan.plan import CONTROLLER, EGRESS, INGRESS
from ..protocols.change_messages import Ask, ChangeReport, Passed, ReportChange
from ..protocols.controller import Controller
from ..protocols.machine import Fenced, Refused
from ..protocols.messages import (
    Closed,
    CopyFailed,
    CopyReady,
    Hello,
    LinkDown,
    Lost,
    Move,
    Publish,
    Resend,
    Suspected,
    ToController,
    View,
    ViewsLost,
)
from ..site import crash_points
from ..site.config import ProcessConfig
from ..site.recording import SUFFIX, Recorder
from ..site.report_link import ReportLink
from ..site.shell import leave
from ..types.errors import DataLost, FluxError
from ..wire import frames, membership, reports
from ..wire.connections import let_in
from ..wire.link import Link, accept_loop
from .change_watch import ChangeWatch
from .copy_comparison import CopyComparison
from .divergence import Difference
from .drain import is_empty, moves_off
from .driver_access import DriverAccess, DriverInProgram
from .failure_detector import LOOK_EVERY_S, FailureDetector
from .link_suspicions import LinkSuspicions
from .load_balance import LoadBalance, new_balancer
from .os_process import pid_of
from .view_journal import ViewJournal

JOURNAL = "controller.journal"
# A node that does not reconnect to a restarted controller is suspected after the first time, and dead after the second.
# A driver that knows of a death reports it at once.
RETURN_S, GONE_S = 5.0, 30.0


class ControllerProcess:
    """The process that owns the view; the `incarnation`-th of its run. By default it opens the journal itself.

    If its number is not known, `was_restarted` says that there was one before: a journal without a view has lost them.
    """

    def __init__(
        self,
        config: ProcessConfig,
        listener: socket.socket,
        incarnation: int = 1,
        views: ViewJournal | None = None,
        driver: DriverAccess | None = None,
        was_restarted: bool = False,
    ) -> None:
        self.config = config
        self.reports = ReportLink()
        self._driver = driver or DriverInProgram(config)
        self._listener = listener
        self._incarnation = incarnation
        self._links: dict[str, Link] = {}
        self._detector = FailureDetector()
        self._suspicions = LinkSuspicions()
        self._draining: set[str] = set()
        self._emptied: set[str] = set()  # Drained sites: each is about to end, and gets no load.
        self._spares = frozenset(config.plan.spares)
        self._comparison = CopyComparison(
            config.plan,
            self._connected_sites,
            self._send_to,
            advance=lambda: self._report(reports.ComparisonAdvanced()),
            warn=lambda text: self._note(logging.WARNING, text),
        )
        self._crashes = crash_points.watch(CONTROLLER, self._flush)
        self._unusable: FluxError | None = None
        self._balance: LoadBalance | None = None
        self._changes = ChangeWatch(self._step, self._report)
        try:
            self._views = views or ViewJournal(config.directory / JOURNAL)
        except FluxError as error:
            self._unusable = error  # Reported when there is a connection to the driver.
            return
        plan = config.plan
        was_restarted = was_restarted or self._views.last is not None or incarnation > 1
        number_from = time.time_ns() // 1_000_000 if was_restarted else 1
        self.machine = Controller(self._views.last or plan.view(), plan.rebuild_at_once, number_from)
        self._recorder: Recorder | None = None
        if config.record is not None:
            name = CONTROLLER if incarnation == 1 else f"{CONTROLLER}.{incarnation}"
            self._recorder = Recorder(config.record / f"{name}{SUFFIX}", self.machine)
        policy = make_policy(plan.policy.balance)
        if policy is not None:
            self._balance = self._make_balance(policy)

    def _make_balance(self, policy: BalancePolicy) -> LoadBalance:
        """Return the balance of this run, from the view as it is: nothing of it outlives a controller."""
        return LoadBalance(
            new_balancer(self.config.plan, self.machine.view),
            policy,
            self._incarnation,
            self._begin_move,
            self._step,
            self._report,
            self._note,
        )

    async def run(self) -> None:
        """Serve until the driver commands a stop."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.reports.connect(await self._driver.connect(self._note))
            nursery.start_soon(self.reports.write)
            nursery.start_soon(self._read_driver)
            if self._unusable is not None:
                self._give_up(self._unusable)
                return
            nursery.start_soon(accept_loop, self._listener, self._accept)
            nursery.start_soon(self._detect_silent_nodes)
            if self._balance is not None:
                nursery.start_soon(self._balance.run)
            if self.machine.number:
                self._report_view(self.machine.view)
                nursery.start_soon(self._time_out_missing_nodes)

    @property
    def connected(self) -> list[str]:
        """The nodes that are connected."""
        return sorted(self._links)

    def drain(self, site: str) -> None:
        """Transfer the partitions of a site to others; the driver gets a report when it holds none."""
        self._draining.add(site)
        self._set_roles()
        self._drain()

    def stop_draining(self, site: str) -> None:
        """Transfer no more partitions off a site."""
        self._draining.discard(site)
        self._set_roles()

    def sites_without(self, site: str) -> list[str]:
        """Return the live sites besides `site` that are not drained."""
        return [other for other in self._sites() if other != site and other not in self._draining]

    # Messages in.

    def _accept(self, sock: socket.socket) -> None:
        self._nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        pid = pid_of(sock)
        guest = await let_in(sock, self.config.identity(CONTROLLER), self._note, self._why_refused)
        if guest is None:
            return
        link = Link(*guest)
        self._nursery.start_soon(link.write)
        try:
            frame = await link.receive()
            if frame is not None and not await self._driver.serve(link, frame[0]):
                await self._attend(link, frame[0], pid)
        except (frames.BadFrame, Refused) as error:
            self._note(logging.WARNING, f"closed the connection to {link.peer}: {error}")
        link.close()
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._detector.forget(link.peer)
            self._step(Closed(node=link.peer))
            if not self.machine.view.alive(link.peer):
                self._views.addresses.pop(link.peer, None)  # It may never have been in a view.

    def _why_refused(self, peer: str) -> str | None:
        view = self.machine.view
        is_dead = peer in view.dead or view.has_forgotten(peer)
        return f"it was declared dead, as view {view.number} says" if is_dead else None

    async def _attend(self, link: Link, first: dict[str, Any], pid: int | None) -> None:
        """Serve a node; its first frame says whether it carries only heartbeats."""
        frame: tuple[dict[str, Any], Any] | None = (first, None)
        if first["kind"] == membership.BEAT["kind"]:
            while frame is not None:
                self._detector.beat(link.peer, time.monotonic(), pid)
                if frame[0]["kind"] == membership.MEMBERSHIP_KIND:
                    self._take(link, membership.read_from_node(frame[0]))
                frame = await link.receive()
            return
        if link.peer in self._links:
            raise frames.BadFrame("a process of this name is connected already")
        self._links[link.peer] = link
        self._detector.expect(link.peer, time.monotonic(), pid)
        while frame is not None:
            self._take(link, membership.read_from_node(frame[0]))
            frame = await link.receive()

    def _take(self, link: Link, message: membership.FromNode) -> None:
        match message:
            case membership.NodeAddress(address=address):
                self._views.addresses[link.peer] = address
            case membership.ViewReceived(number=number):
                if number > self.machine.number:
                    raise frames.BadFrame(f"expected a view up to {self.machine.number}, got {number} of {link.peer}")
                self._views.record_seen(link.peer, number)
            case membership.EmittedDigests():
                self._compare(link.peer, message)
            case membership.FinalDigests() | membership.RowWords() | membership.RowTexts():
                self._comparison.answer(link.peer, message)
            case membership.CodeStuck(text=text):
                self._report(reports.ProcessStuck(node=link.peer, text=text))
            case membership.PeerUnreachable(peer=peer):
                self._suspect_link(link.peer, peer)
            case membership.WorkDone(work=work):
                if work.node != link.peer:
                    raise frames.BadFrame(f"expected the work of {link.peer}, got that of {work.node!r:.200}")
                if self._balance is not None:
                    self._balance.take(work)
            case membership.FromMachine(message=of_machine):
                if of_machine.node != link.peer:
                    raise frames.BadFrame(f"expected a message of {link.peer}, got {of_machine!r:.200}")
                self._step(of_machine)

    def _compare(self, node: str, emitted: membership.EmittedDigests) -> None:
        """Report an operator whose copies emit different rows."""
        if difference := self._comparison.compare(node, emitted):
            self._nursery.start_soon(self._report_difference, difference)

    async def _report_difference(self, difference: Difference) -> None:
        error = await self._comparison.error_of(difference)
        self._report(reports.ProcessFailed(node=CONTROLLER, error=error.to_dict()))

    async def _compare_at_end(self) -> None:
        error = await self._comparison.compare_at_end()
        self._report(reports.CopiesCompared(error=None if error is None else error.to_dict()))

    def _connected_sites(self) -> list[str]:
        return [site for site in self._sites() if site in self._links]

    def _send_to(self, node: str, message: membership.FromController) -> None:
        if node in self._links:
            self._links[node].send(membership.membership_frame(message))

    def _suspect_link(self, a: str, b: str) -> None:
        """Node `a` cannot reach `b`: if `b` reports the same, neither has died, and one of them has to go."""
        if not ({a, b} <= set(self.machine.view.nodes) and {a, b} <= self._links.keys()):
            return
        if self._suspicions.add(a, b, time.monotonic(), self._detector.usual_s):
            self._step(LinkDown(a=a, b=b))

    async def _detect_silent_nodes(self) -> None:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            for node in self._detector.silent(self._living(), time.monotonic()):
                if self.machine.view.alive(node):
                    self._step(Suspected(node=node))

    async def _time_out_missing_nodes(self) -> None:
        await trio.sleep(RETURN_S)
        for node in self._silent_missing():
            self._step(Suspected(node=node))
        await trio.sleep(GONE_S - RETURN_S)
        for node in self._silent_missing():
            self._step(Closed(node=node))

    def _living(self) -> list[str]:
        view = self.machine.view
        return [node for node in view.nodes if node not in view.dead]

    def _missing(self) -> list[str]:
        return [node for node in self._living() if node not in self._links]

    def _silent_missing(self) -> list[str]:
        """Missing nodes without heartbeats: one that is busy with a long job reconnects after it."""
        return [node for node in self._missing() if not self._detector.beats(node, time.monotonic())]

    # Effects.

    def _step(self, message: ToController) -> None:
        if self._unusable is not None:
            return
        before = self.machine.view
        if self._crashes is not None:
            self._crashes.step(message)
        if isinstance(message, Passed):
            self._changes.note_passed(message, before)
        try:
            effects = self.machine.step(message)
        except Fenced as fenced:
            assert isinstance(message, Hello | CopyReady | CopyFailed | ChangeReport)
            self._dismiss(message.node, str(fenced))
            return
        if isinstance(message, Closed) and before.alive(message.node):
            self._report_gone(message.node)
        if isinstance(message, Hello):
            self._views.record_seen(message.node, message.view)
        if self._recorder is not None:
            self._recorder.record(message, effects)
        for effect in effects if self._crashes is None else self._crashes.along(effects):
            if isinstance(effect, Publish):
                try:
                    self._publish(effect)
                except FluxError as error:
                    self._give_up(error)
                    return
            elif isinstance(effect, Resend):
                for view in self._views.views_after(effect.after, effect.to):
                    self._send_view(effect.to, view)
            elif isinstance(effect, ViewsLost):
                self._give_up(_views_lost(self._views.path, effect))
                return
            elif isinstance(effect, Ask):
                for node in effect.to:
                    self._send_to(node, membership.ForMachine(message=effect.message))
                self._changes.note_asked(effect, self._nursery)
            elif isinstance(effect, ReportChange):
                self._changes.note_decided(effect)
            else:
                assert isinstance(effect, Lost), f"the controller cannot {effect}"
                self._report_lost(effect)
        self._follow_up(before)

    def _follow_up(self, before: View) -> None:
        """Dismiss the nodes that were declared dead, and continue the drains."""
        view = self.machine.view
        for node in view.dead - before.dead:
            if node in self._links:
                self._report_gone(node, self._last_sign_of(node))
                self._dismiss(node, f"it was declared dead in view {view.number}: it did not answer, or was cut off")
        if view is not before:
            self._drain()
            if self._balance is not None:
                self._balance.on_view(self.machine.view)

    def _dismiss(self, node: str, why: str) -> None:
        link = self._links.pop(node, None)
        self._detector.forget(node)
        self._views.addresses.pop(node, None)
        if link is not None:
            self._log(f"{node} is dismissed: {why}")
            link.send(membership.membership_frame(membership.Dismissed(why=why)))
            self._nursery.start_soon(_close_when_sent, link)

    def _give_up(self, error: FluxError) -> None:
        """Report an error that ends the run: a view that is not in the journal must not be sent."""
        self._unusable = error
        self._report(reports.ProcessFailed(node=CONTROLLER, error=error.to_dict()))

    def _publish(self, publish: Publish) -> None:
        self._views.append(publish.view)
        for node in publish.to:
            self._send_view(node, publish.view)
        self._report_view(publish.view)

    def _flush(self) -> None:
        for link in (self.reports, *self._links.values()):
            link.flush()

    def _send_view(self, node: str, view: View) -> None:
        self._send_to(node, membership.NewView(view=view, addresses=self._views.addresses))

    def _drain(self) -> None:
        view = self.machine.view
        for site in sorted(self._draining):
            if not view.alive(site):
                self._draining.discard(site)
                self._report_gone(site)  # The command that asked for the drain may not know.
            elif is_empty(view, site):
                self._draining.discard(site)
                self._emptied.add(site)
                self._report(reports.SiteDrained(site=site))
        for move in list(moves_off(view, self._draining, self._sites())):
            leaving = view.copies[move.stage][move.partition][move.slot]
            if (version := self._begin_move(move)) is not None:
                self._report(reports.CopiesBegun(versions=(version,), why=f"drain of {leaving}", round=None))

    def _begin_move(self, move: Move) -> int | None:
        """Begin to move a copy; return the version of the new one, or None if the move is not possible any more."""
        self._step(move)
        place = (move.stage, move.partition, move.to)
        standby = self.machine.view.standby
        return next((s.version for s in standby if (s.stage, s.partition, s.node) == place), None)

    def _set_roles(self) -> None:
        if self._balance is not None:
            self._balance.set_roles(self._spares, self._draining | self._emptied)

    def _sites(self) -> list[str]:
        return [node for node in self._living() if node.partition(".")[0] not in (INGRESS, EGRESS)]

    # Reports to the driver.

    def _report_gone(self, node: str, seen_at: float | None = None) -> None:
        """Report that a node is dead; one that was declared dead gave its last sign of life at `seen_at`."""
        self._report(reports.NodeDead(node=node, at=time.monotonic(), seen_at=seen_at))

    def _last_sign_of(self, node: str) -> float | None:
        """Return the time of its last heartbeat, or since when another node could not reach it if that is earlier."""
        signs = (self._detector.last(node), self._suspicions.since(node))
        return min((at for at in signs if at is not None), default=None)

    def _report_lost(self, lost: Lost) -> None:
        names = [_name(self.config, *place) for place in lost.partitions]
        copies = max(len(self.machine.view.copies[stage][partition]) for stage, partition in lost.partitions)
        self._report(reports.ProcessFailed(node=CONTROLLER, error=DataLost(names, copies=copies).to_dict()))

    def _report_view(self, view: View) -> None:
        whole = not view.standby and not any(
            node in view.dead for partitions in view.copies for copies in partitions for node in copies
        )
        at = time.monotonic()
        self._report(reports.ViewPublished(number=view.number, versions=view.versions, whole=whole, at=at))
        copies = {
            node: sum(len(view.held(stage, node)) for stage in range(len(view.copies)) if not view.is_end(stage))
            for node in view.nodes
            if view.alive(node)
        }
        self._report(reports.Placement(copies=copies, building=len(view.standby)))

    async def _read_driver(self) -> None:
        while True:
            try:
                await self._obey()
                leave(0)  # The driver is gone.
            except frames.BadFrame as error:
                refused = error
            self.reports.close()
            self.reports = ReportLink(again=True)
            self.reports.connect(await self._driver.connect(self._note))
            self._nursery.start_soon(self.reports.write)
            self._note(logging.WARNING, f"closed the last connection to the driver: {refused}")

    async def _obey(self) -> None:
        while (frame := await self.reports.receive()) is not None:
            match reports.read_command(frame[0]):
                case reports.StopProcess(status=status):
                    self._report(reports.ProcessStopped())
                    await self.reports.drain()
                    leave(status)
                case _ if self._unusable is not None:
                    pass  # Without its journal it knows of no view; the driver has the error, and ends the run.
                case reports.DeclareDead(node=node):
                    if node in self._missing():
                        self._step(Closed(node=node))
                case reports.DrainSite(site=site):
                    self.drain(site)
                case reports.SpareSites(sites=sites):
                    self._spares |= frozenset(sites)
                    self._set_roles()
                case reports.RequestChange() as wanted:
                    self._changes.request(wanted)
                case reports.GiveUpChange() as unwanted:
                    self._changes.give_up(unwanted)
                case reports.CompareCopies():
                    self._nursery.start_soon(self._compare_at_end)
                case command:
                    raise frames.BadFrame(f"expected a command for the controller, got {type(command).__name__}")

    def _report(self, report: reports.Report) -> None:
        self.reports.send_report(report)

    def _log(self, text: str) -> None:
        self._note(logging.INFO, text)

    def _note(self, level: int, text: str) -> None:
        self._report(reports.LogLine(node=CONTROLLER, level=level, text=text))


async def _close_when_sent(link: Link) -> None:
    """Close a link when everything queued on it has gone out."""
    with trio.move_on_after(1.0):
        await link.drain()
    link.close()


def _views_lost(path: Path, lost: ViewsLost) -> FluxError:
    return FluxError(
        f"the controller's journal {path} has lost its end, as it may when a machine loses power: {lost.node} has seen "
        f"view {lost.seen}, and the journal ends with view {lost.last}. Where copies live is not known any more, so "
        "the run cannot go on. Output up to now is right; run the flow again"
    )


def _name(config: ProcessConfig, stage: int, partition: int) -> list[Any]:
    return [config.plan.segment(stage).title, partition]
