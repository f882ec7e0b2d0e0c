"""Change request: checks what a user wants changed against the plan, and makes the spec of the change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from ..hosting import StateChange, StepEdition, checked_operator
from ..hosting.edition_code import EditionCode, hash_of, reference_to
from ..hosting.step_editions import changed_step
from ..model.operator import OperatorStep, output_of
from ..model.stateless import PassThrough
from ..plan import Plan
from ..plan.change_spec import FILTER, AddedStep, StepChange, write_schema, write_spec
from ..plan.plan import INPUT
from ..plan.step_places import place_of_step
from ..protocols.change_messages import OF_INGRESS, OF_RECEIVERS
from ..sinks import Sink
from ..types.arrays import schema_of
from ..types.errors import ChangeError, FluxError
from ..types.normalize import describe_columns
from ..wire import reports, requests
from .known_changes import KnownChange, KnownChanges

SCHEDULERS = {"sn": OF_RECEIVERS, "epoch": OF_INGRESS}


@dataclass(frozen=True)
class AddedRequest:
    """A step that is to stand before or after another one; made by `flux.filter` and `flux.map`."""

    kind: str
    function: Any
    output: Any = None
    by_batch: bool = False


@dataclass(frozen=True)
class StepRequest:
    """What is to become of one step; made by `flux.change` and `flux.remove`. None: what it is."""

    operator: Any = None
    migrate: Any = None
    modules: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    before: tuple[AddedRequest, ...] | None = None
    after: tuple[AddedRequest, ...] | None = None
    removed: bool = False


Places = dict[tuple[int, int], StepChange]


def plain_requests(wanted: Iterable[requests.StepWanted]) -> dict[str, StepRequest]:
    """Return what a command wants changed as a program would say it."""
    return {
        each.step: StepRequest(each.operator or None, each.migrate or None, each.modules, each.parameters)
        for each in wanted
    }


class ChangeBuilder:
    """Makes changes of a plan; `code` has what earlier ones have loaded."""

    def __init__(self, plan: Plan, sinks: Sequence[Sink]) -> None:
        self._plan = plan
        self._sinks = sinks
        self._code = EditionCode()

    def ask(self, known: KnownChanges, wanted: Mapping[str, StepRequest], scheduler: str, now: float) -> KnownChange:
        """Return a change that is to be requested of the controller, after those that are known."""
        if scheduler not in SCHEDULERS:
            raise ChangeError(f"scheduler is one of {', '.join(map(repr, SCHEDULERS))}, got {scheduler!r:.100}")
        number = known.last + 1
        made = self.build(number, wanted, known.steps())
        command = reports.RequestChange(
            number=number,
            stages=frozenset(stage for (stage, _), each in made.items() if each.since == number),
            spec=write_spec(made.values()),
            scheduler=SCHEDULERS[scheduler],
        )
        change = KnownChange(number, tuple(wanted), scheduler, command, made, now)
        known.add(change)
        return change

    def build(self, number: int, wanted: Mapping[str, StepRequest], now: Places) -> Places:
        """Return all changed steps of the stages of change `number`, by stage and place; `now` is what they are."""
        if not wanted:
            raise ChangeError("reconfigure({...}) names steps and what is to become of them; it names none")
        places: dict[tuple[int, int], StepRequest] = {}
        for name, request in wanted.items():
            if not isinstance(request, StepRequest):
                raise ChangeError(f"reconfigure({{{name!r}: ...}}) takes flux.change(...), got {request!r:.200}")
            places[place_of_step(self._plan, name)] = request
        stages = {stage for stage, _ in places}
        made = {place: change for place, change in now.items() if place[0] in stages}
        outputs: dict[tuple[int, int], Any] = {}  # Of the steps whose output changes.
        for place in sorted(places):
            made[place], output = self._changed(number, place, places[place], now, outputs)
            if output is not None:
                self._check_takers(place, output, self._emitted(place, now), places)
                outputs[place] = output
        return made

    def _changed(
        self,
        number: int,
        place: tuple[int, int],
        request: StepRequest,
        now: Places,
        outputs: Mapping[tuple[int, int], pa.Schema],
    ) -> tuple[StepChange, pa.Schema | None]:
        """Return a changed step, and the columns that it emits if these are others than before."""
        planned, last = self._planned(place), now.get(place)
        operator, migrate = "", ""
        fresh = dict.fromkeys(request.modules, "")
        if request.operator is not None:
            operator = reference_to(request.operator, f"the operator for step {planned.name!r}")
            fresh[operator.partition(":")[0]] = ""
        if request.migrate is not None:
            migrate = reference_to(request.migrate, f"migrate= for step {planned.name!r}")
            fresh[migrate.partition(":")[0]] = ""
        sources = tuple((module, hash_of(module)) for module in sorted(fresh))
        if request.operator is None and last is not None:
            operator, of_operator = last.operator, last.sources
        else:
            of_operator = sources if operator else ()
        change = StepChange(
            stage=place[0],
            place=place[1],
            since=number,
            operator="" if request.removed else operator,
            sources=() if request.removed else of_operator,
            migrate=migrate,
            migrate_sources=sources if migrate else (),
            parameters={} if request.removed else ({} if last is None else last.parameters) | request.parameters,
            output=b"",
            before=self._added(request.before, () if last is None else last.before),
            after=self._added(request.after, () if last is None else last.after),
            removed=request.removed,
        )
        return self._with_outputs(change, planned, last, outputs)

    def _added(self, wanted: tuple[AddedRequest, ...] | None, now: tuple[AddedStep, ...]) -> tuple[AddedStep, ...]:
        """Return the steps that are to stand before or after another one; without a wish, those that do."""
        if wanted is None:
            return now
        made = []
        for each in wanted:
            if not isinstance(each, AddedRequest):
                raise ChangeError(f"before= and after= take flux.filter(...) and flux.map(...), got {each!r:.200}")
            function = reference_to(each.function, f"the function of flux.{each.kind}")
            sources = ((module := function.partition(":")[0], hash_of(module)),)
            made.append(
                AddedStep(
                    kind=each.kind,
                    function=function,
                    sources=sources,
                    by_batch=each.by_batch,
                    output=write_schema(schema_of(each.output)),
                )
            )
        return tuple(made)

    def _with_outputs(
        self,
        change: StepChange,
        planned: OperatorStep,
        last: StepChange | None,
        outputs: Mapping[tuple[int, int], pa.Schema],
    ) -> tuple[StepChange, pa.Schema | None]:
        """Return the change with the columns that its steps emit, and what leaves its place if these are others."""
        before, rows = self._passed(change.before, self._input_of(change, outputs) or planned.rows)
        if change.removed and rows is None:
            raise ChangeError(f"step {planned.name!r} cannot be removed: what it is given is not declared")
        output = rows if change.removed else self._output_of(change, planned, rows)
        after, emitted = self._passed(change.after, output)
        change = replace(change, before=before, output=write_schema(output), after=after)
        changed_step(planned, self._edition(planned, last), change, self._code)  # It raises if that cannot be.
        was = planned.output if last is None or last.emitted is None else last.emitted
        if emitted is None:
            return change, None
        return change, emitted if not isinstance(was, pa.Schema) or not emitted.equals(was) else None

    def _output_of(self, change: StepChange, planned: OperatorStep, rows: pa.Schema | None) -> pa.Schema | None:
        """Return the columns that an operator emits, if they are declared."""
        factory = self._code.load(change.operator, change.sources) if change.operator else planned.factory
        try:
            checked_operator(factory, planned.name)
            output = output_of(factory, planned.parameters | change.parameters, planned.key_columns, rows)
        except FluxError as error:
            raise ChangeError(str(error)) from error
        return output if output is not None or not isinstance(planned.output, pa.Schema) else planned.output

    def _passed(
        self, steps: tuple[AddedStep, ...], rows: pa.Schema | None
    ) -> tuple[tuple[AddedStep, ...], pa.Schema | None]:
        """Return added steps, each with the columns that it emits, and the columns after the last."""
        made = []
        for step in steps:
            if step.kind == FILTER:
                step = replace(step, output=write_schema(rows))
            elif not step.output:
                raise ChangeError(f"flux.map({step.function}): say what it emits, with output={{...}}")
            rows = step.schema
            made.append(step)
        return tuple(made), rows

    def _input_of(self, change: StepChange, outputs: Mapping[tuple[int, int], pa.Schema]) -> pa.Schema | None:
        """Return the columns that a step takes, if this change makes them others."""
        parent = self._plan.segment(change.stage).parents[change.place]
        if parent >= 0:
            return outputs.get((change.stage, parent))
        edges = [edge for edge in self._plan.edges if edge.consumer == change.stage]
        return next((outputs[e.producer, e.tap] for e in edges if (e.producer, e.tap) in outputs), None)

    def _check_takers(
        self, place: tuple[int, int], output: pa.Schema, before: Any, places: Iterable[tuple[int, int]]
    ) -> None:
        """Raise unless all that takes the new columns of a step changes with it, or takes them as they are."""
        (stage, own), name = place, self._planned(place).name
        segment = self._plan.segment(stage)
        takers = [(stage, number) for number, parent in enumerate(segment.parents) if parent == own]
        for edge in self._plan.edges:
            if (edge.producer, edge.tap) != (stage, own):
                continue
            if edge.consumer in self._plan.sink_stages:
                sink = self._sinks[self._plan.sink_stages.index(edge.consumer)]
                if not sink.takes(output, before if isinstance(before, pa.Schema) else None):
                    raise ChangeError(
                        f"step {name!r} would emit {describe_columns(output)}, and the sink {type(sink).__name__} "
                        "takes what it has taken from the start. Jsonl, Callback and Null take other columns, Parquet "
                        "takes further ones"
                    )
                continue
            for column in edge.route.columns:
                if column not in output.names:
                    raise ChangeError(f"step {name!r} would not emit {column!r}, by which the exchange after it routes")
            parents = self._plan.segment(edge.consumer).parents
            takers += [(edge.consumer, number) for number, parent in enumerate(parents) if parent <= INPUT]
        missing = [self._planned(taker).name for taker in takers if taker not in places]
        if missing:
            raise ChangeError(
                f"step {name!r} would emit other columns, {describe_columns(output)}: all that takes them changes with "
                f"it. Name {', '.join(map(repr, missing))} in the same reconfigure({{...}})"
            )

    def _planned(self, place: tuple[int, int]) -> OperatorStep:
        return self._plan.segment(place[0]).steps[place[1]]

    def _emitted(self, place: tuple[int, int], now: Places) -> Any:
        """Return the columns that leave a place now, as far as they are known."""
        last = now.get(place)
        return self._planned(place).output if last is None or last.emitted is None else last.emitted

    def _edition(self, planned: OperatorStep, last: StepChange | None) -> StepEdition:
        """Return a step as the last change left it."""
        as_planned = StepEdition(planned, StateChange())
        if last is None:
            return as_planned
        if last.removed:
            return StepEdition(replace(planned, factory=PassThrough, parameters={}), StateChange(drops=True))
        factory = self._code.load(last.operator, last.sources) if last.operator else planned.factory
        output = planned.output if last.schema is None else last.schema
        step = replace(planned, factory=factory, parameters=planned.parameters | last.parameters, output=output)
        return StepEdition(step, StateChange())
