"""Kills: processes that get SIGKILL, one or several, at any moment."""

from __future__ import annotations

from experiments.soak.striker import ENDS, Fault, Striker


class Kills:
    """Kills of sites and ends, by `striker`."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self.faults: tuple[Fault, ...] = (
            self.kill_a_site,
            self.kill_an_end,
            self.kill_two_sites,
            self.kill_a_site_and_an_end,
            self.kill_the_new_site,
            self.kill_several_kinds,
        )

    def kill_a_site(self) -> str | None:
        """One that holds copies."""
        victim = self._striker.any_site()
        if victim is None:
            return None
        self._striker.kill(victim)
        return "site"

    def kill_an_end(self) -> str | None:
        """The ingress, the egress or the controller."""
        name = self._striker.draw.choice(ENDS)
        self._striker.kill(name)
        return name

    def kill_two_sites(self) -> str | None:
        """Two that share no partition; one, if there are none such."""
        pairs = self._striker.to_spare(2)
        if not pairs:
            return self.kill_a_site()
        self._striker.kill(*self._striker.draw.choice(pairs))
        return "two sites at once"

    def kill_a_site_and_an_end(self) -> str | None:
        """One just after the other."""
        site = self._striker.any_site()
        if site is None:
            return None
        end = self._striker.draw.choice(ENDS)
        for name in self._striker.draw.sample([site, end], 2):
            self._striker.kill(name)
            self._striker.pause(0.05)
        return f"site and {end}"

    def kill_the_new_site(self) -> str | None:
        """A site dies, and then one on which its copies are rebuilt."""
        fault = self.kill_a_site()
        if fault is None:
            return None
        self._striker.pause(0.5)
        watch = self._striker.watch
        building = {standby.node for standby in watch.view().standby}
        new = [site for site in watch.sites() if site in building and self._striker.can_lose({site})]
        if not new:
            return fault
        self._striker.kill(self._striker.draw.choice(new))
        return "site and its successor"

    def kill_several_kinds(self) -> str | None:
        """Two or all of ingress, egress and controller, and perhaps a site, before any is missed."""
        victims = self._striker.draw.sample(ENDS, self._striker.draw.choice((2, 3)))
        site = self._striker.any_site()
        if site is not None and self._striker.draw.random() < 0.5:
            victims.append(site)
        self._striker.kill_at_once(*victims)
        return f"{len(victims)} kinds at once"
