"""What the figures of thesis chapter 4 show, as experiments of `flux experiment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.experiment import Experiment, Finding, Outcome, Progress

from . import figure_4_2, figure_4_6, figure_4_7, figure_4_8
from .plot import plot

Summary = dict[str, Any]


def _limit(what: str, value: float | None, limit: float, *, is_least: bool, thesis: str = "") -> Finding:
    holds = value is not None and (value >= limit if is_least else value <= limit)
    target = f"at {'least' if is_least else 'most'} {limit:g}"
    return Finding(what=what, value=value, target=target, holds=holds, thesis=thesis)


def _of_figure_4_2(found: Summary) -> list[Finding]:
    return [
        _limit(
            f"{case}: space, as a part of Exchange's",
            found[case]["part_of_exchange"],
            # All sorted alike, half of a turn is in the pools while every site is busy: no pool can do with less.
            0.51 if case == figure_4_2.ALIKE else 0.25,
            is_least=False,
        )
        for case in found
    ]


def _of_figure_4_6(found: Summary) -> list[Finding]:
    level = found["level"]
    return [
        _limit("s until 99 % of the best placement", level["reached_after_load_s"], 4.0, is_least=False, thesis="9 s"),
        _limit("of the best placement at the end", level["of_best"], 0.99, is_least=True),
        _limit("moves", level["moves"], 64, is_least=False, thesis="32"),
    ]


def _of_figure_4_7(found: Summary) -> list[Finding]:
    return [_limit("of the best placement after 44 s, the least", found["level"]["least"], 0.98, is_least=True)]


def _of_figure_4_8(found: Summary) -> list[Finding]:
    findings = []
    for case, values in found.items():
        findings.append(_limit(f"{case}: Level, of the best", values["level_of_best"], 0.985, is_least=True))
        printed, derived = values["printed_to_static_unloaded"], values["derived_to_static"]
        if len(printed) > len(derived):
            what = f"{case}: hill climbing as printed, of static and unloaded, with {{:g}} s of collection"
            better_s = 0.25 if case.endswith(" 0 loaded") else 0.15
            short_s = min(printed)
            findings += [
                _limit(what.format(short_s), printed[short_s], 0.55, is_least=False, thesis="half if too short"),
                _limit(what.format(better_s), printed[better_s], 1.0, is_least=True, thesis="better from here on"),
            ]
        if derived:
            what = f"{case}: hill climbing as derived, of static, with {min(derived):g} s of collection"
            findings.append(_limit(what, derived[min(derived)], 1.0, is_least=True))
    return findings


def _experiment(
    number: str, figure: ModuleType, findings: Callable[[Summary], list[Finding]], minutes: str
) -> Experiment:
    def run(quick: bool, progress: Progress) -> Outcome:
        progress(f"fig. {number}, simulated")
        rows = figure.run(quick, progress)
        return Outcome(rows=rows, findings=findings(figure.summary(rows)))

    def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
        plot(number, list(rows), path)

    name = f"figure-{number.replace('.', '-')}"
    claim = f"Fig. {number}, on a simulated cluster: {figure.CLAIM}"
    return Experiment(name=name, claim=claim, run=run, plot=draw, minutes=minutes, folder="cluster")


EXPERIMENTS = [
    _experiment("4.2", figure_4_2, _of_figure_4_2, "10; quick: 1"),
    _experiment("4.6", figure_4_6, _of_figure_4_6, "3; quick: 1"),
    _experiment("4.7", figure_4_7, _of_figure_4_7, "10; quick: 1"),
    _experiment("4.8", figure_4_8, _of_figure_4_8, "10; quick: 1"),
]
