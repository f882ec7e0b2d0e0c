"""The report that `flux spec rules` prints: every rule, and for each of its removals the story of a failure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import RULES, ProtocolRule, failure_story

WIDTH = 110


@dataclass(frozen=True)
class RemovalReport:
    """One removal and its failure; without a counterexample `claim` and `story` are empty."""

    name: str
    what: str
    world: str
    claim: str
    story: str


@dataclass(frozen=True)
class RuleReport:
    """A rule and the reports of its removals."""

    number: int
    title: str
    text: str
    argument: str
    removals: tuple[RemovalReport, ...]

    @property
    def is_settled(self) -> bool:
        """Whether every removal has its counterexample, and a rule without removals its argument."""
        return all(removal.claim for removal in self.removals) and bool(self.removals or self.argument)

    def __str__(self) -> str:
        parts = [f"Rule {self.number}. {self.title}", textwrap.fill(self.text, WIDTH)]
        for removal in self.removals:
            head = textwrap.fill(f"Without it ({removal.name}): {removal.what}", WIDTH)
            story = removal.story or "NO COUNTEREXAMPLE FOUND"
            parts.append(f"{head}\n{textwrap.indent(story, '    ')}")
        if self.argument:
            parts.append(textwrap.fill(f"Not needed: {self.argument}", WIDTH))
        return "\n\n".join(parts)


def report(numbers: Sequence[int] = (), progress: Callable[[str], None] = lambda line: None) -> list[RuleReport]:
    """Return reports of the rules with these numbers, or of all rules, each taken out in turn."""
    reports = []
    for rule in [rule for rule in RULES if not numbers or rule.number in numbers]:
        reports.append(_rule_report(rule))
        progress(f"rule {rule.number}: {len(rule.removals)} ways to take it out")
    return reports


def _rule_report(rule: ProtocolRule) -> RuleReport:
    removals = []
    for removal in rule.removals:
        found = failure_story(removal)
        claim, story = (found.claim, found.story) if found is not None else ("", "")
        removals.append(RemovalReport(removal.name, removal.what, removal.world, claim, story))
    return RuleReport(rule.number, rule.title, rule.text, rule.argument, tuple(removals))
