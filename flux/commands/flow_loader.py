"""The loader of MODULE:FLOW: how a command finds the dataflow that it runs."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType

from ..dataflow import Dataflow
from ..types.errors import FluxError, PlanError


def find_flow(name: str) -> Dataflow:
    """Return the dataflow that MODULE:FLOW names, imported with the current directory on the path."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise PlanError(f"a flow is named MODULE:FLOW, such as myjob:flow, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import(module_name)
    flow = getattr(module, attribute, None)
    if not isinstance(flow, Dataflow):
        found = sorted(key for key, value in vars(module).items() if isinstance(value, Dataflow))
        raise PlanError(
            f"{name}: {attribute!r} is not a Dataflow of {module_name}; it has {', '.join(found) or 'none'}. Write "
            f"{module_name}:{found[0] if found else 'NAME'}, with the name of a variable that holds a flux.Dataflow"
        )
    return flow


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise PlanError(
                f"no module {error.name!r} here or on the Python path; is it in {os.getcwd()}? Go to the directory "
                "that holds it, or set PYTHONPATH"
            ) from error
        raise _import_error(module_name, error) from error
    except FluxError as error:
        raise PlanError(f"{module_name} cannot be imported: {_place(error)}{error}") from error
    except Exception as error:
        raise _import_error(module_name, error) from error


def _import_error(module_name: str, error: Exception) -> PlanError:
    return PlanError(
        f"{module_name} cannot be imported: {_place(error)}{type(error).__name__}: {error}. Fix it until "
        f"`python -c 'import {module_name}'` succeeds"
    )


def _place(error: Exception) -> str:
    """Return the last line of the traceback that is not of Flux or Python's import system: the user's, if any."""
    own = os.path.dirname(os.path.dirname(__file__))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((own, "<frozen", importlib.__file__))
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
