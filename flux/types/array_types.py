"""Short names for the numpy arrays that rows are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]
Uint64s: TypeAlias = npt.NDArray[np.uint64]
Float64s: TypeAlias = npt.NDArray[np.float64]
Pids: TypeAlias = npt.NDArray[np.uint16]  # The number of each row's partition.
Slots: TypeAlias = npt.NDArray[np.int64]  # The place of each row's key in a `KeyTable`.
Key: TypeAlias = tuple[Any, ...]  # The values of a key's columns, in the order of the exchange.
