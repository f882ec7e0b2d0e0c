"""Fork check: refuses a run whose processes would wait for threads, or use connections, that only the program has.

The processes are forks of the program (`spawner`). If the program has used a library whose threads are lost in a fork,
the first parallel call of it in an operator would never return. Code of a step, a source or a sink that refers to the
library is refused; else it is a warning, because the program alone may have used it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from ...model.error_location import locate
from ...plan import Plan
from ...site.code_references import first_with_package, first_with_value
from ...site.lost_threads import LostThreads, lost_threads
from ...types.errors import PlanError

log = logging.getLogger("flux")

_GIVE_SESSION = frozenset({"SparkSession", "SparkContext"})
_OF_SPARK = _GIVE_SESSION | {"DataFrame"}


def check_fork(plan: Plan, ends: Sequence[Any]) -> None:
    """Raise `PlanError` if code of the flow would wait for threads that are lost in a fork; warn if it might.

    `ends` are the sources and sinks.
    """
    parts = [
        (f"step {step.name}", (step.factory, step.parameters))
        for segment in (plan.first, *plan.segments)
        for step in segment.steps
    ]
    parts += [(type(end).__qualname__, end) for end in ends]
    if "pyspark" in sys.modules:
        for what, code in parts:
            _refuse_spark(what, code)
    for lost in lost_threads():
        for what, code in parts:
            _refuse(lost, what, code)
        log.warning(
            "%s. Nothing in this flow was seen to use it; what does would wait for ever. %s",
            _facts(lost),
            _advice(lost),
        )


def _refuse(lost: LostThreads, what: str, code: Any) -> None:
    user = first_with_package(code, lost.library.packages)
    if user is not None:
        raise PlanError(
            f"{what} uses {lost.library.name} in {locate(user)}, and would wait for ever: {_facts(lost)}. "
            f"{_advice(lost)}"
        )


def _refuse_spark(what: str, code: Any) -> None:
    """Refuse code that calls Spark: forks would share one connection to the JVM, and read each other's answers."""
    user = first_with_value(code, _is_of_spark)
    if user is not None:
        raise PlanError(
            f"{what} uses Spark in {locate(user)}. Its connection to the JVM belongs to this program, and the "
            "processes of a run are forks of the program: they would read each other's answers. Call Spark before the "
            "flow or after it; rows of a DataFrame come into a flow by flux.spark.Stream or flux.spark.Frame"
        )


def _is_of_spark(value: Any) -> bool:
    """Return whether a value is a session, a context or a DataFrame of Spark, or a class that returns the session."""
    if isinstance(value, type) and not _has_started_jvm():
        return False  # A session that an operator starts is its own.
    names, kinds = (_GIVE_SESSION, value.__mro__) if isinstance(value, type) else (_OF_SPARK, type(value).__mro__)
    return any(kind.__name__ in names and kind.__module__.startswith("pyspark.") for kind in kinds)


def _has_started_jvm() -> bool:
    context = getattr(sys.modules["pyspark"], "SparkContext", None)
    return getattr(context, "_gateway", None) is not None


def _facts(lost: LostThreads) -> str:
    return f"the program has {lost}, and the processes of a run are forks of the program, which lack them"


def _advice(lost: LostThreads) -> str:
    name = lost.library.name
    return (
        f"Let nothing use {name} before the flow starts: do it in another process, or put the flow into a module that "
        f"does not, and start it with `flux run MODULE:FLOW`{lost.library.remedy}"
    )
