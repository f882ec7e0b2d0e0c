"""A module of the user's, which travels with `--py-files`."""

from typing import Any

import flux


class RunningSum(flux.KeyedOperator):
    """The sum of each key so far, and where the executor has its Flux from."""

    output = {"key": "int64", "total": "int64", "flux": "string"}  # noqa: RUF012

    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> Any:
        total = (state or 0) + row.n
        return total, [{"key": key[0], "total": total, "flux": flux.__file__}]
