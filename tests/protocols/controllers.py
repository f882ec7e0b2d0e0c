"""Controllers that the tests share: plans, who greets, and what is published."""

from __future__ import annotations

from flux.protocols.controller import Controller
from flux.protocols.messages import Effect, Hello, Publish, View


def laid_out(sites: int, *stages: list[str]) -> View:
    """A plan: each stage a list of "primary secondary" by the numbers of their sites."""
    copies = tuple(tuple(tuple(f"site-{n}" for n in pair.split()) for pair in stage) for stage in stages)
    nodes = ("ingress", *(f"site-{n}" for n in range(1, sites + 1)), "egress")
    return View(number=0, nodes=nodes, dead=frozenset(), copies=((("ingress",),), *copies, (("egress",),)))


def hello(plan: View, node: str, view: int = 0) -> Hello:
    """What a node of the plan says when it comes: also which ends it serves."""
    ends = (stage for stage, copies in enumerate(plan.copies) if plan.is_end(stage) and copies == ((node,),))
    return Hello(node=node, view=view, ends=tuple(ends))


def running(plan: View, at_once: int = 1) -> Controller:
    """A controller that has published its first view to all nodes of the plan."""
    controller = Controller(plan, at_once)
    for node in plan.nodes:
        controller.step(hello(plan, node))
    assert controller.number == 1
    return controller


def published(effects: list[Effect]) -> View:
    """The view that was published, and nothing else."""
    [effect] = effects
    assert isinstance(effect, Publish)
    return effect.view


def building(view: View) -> list[tuple[int, int, int, str, str]]:
    """The copies on their way: stage, partition, slot, donor, node."""
    return [(s.stage, s.partition, s.slot, s.donor, s.node) for s in view.standby]
