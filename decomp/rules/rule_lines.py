"""Finds the line of a rule that raised an error: the innermost frame of the rule's own code in the traceback."""

from __future__ import annotations

from collections.abc import Callable
import functools
import inspect
import linecache
import traceback
from types import CodeType, FunctionType
from typing import Any


def line_of(function: Callable[..., Any], error: BaseException) -> str | None:
    """`mine.py:15: u += 1`, or None if the error does not come from Python code of `function`."""
    code, found = code_of(function), None
    for frame, number in traceback.walk_tb(error.__traceback__):
        # By identity of the code, as a helper of the same name may be on the stack. The last one found is the
        # innermost.
        if frame.f_code is code:
            found = number
    if code is None or found is None:
        return None
    return format_line(code, found)


def format_line(code: CodeType, number: int) -> str:
    """A line of code with its location: `mine.py:15: u += 1`."""
    text = linecache.getline(code.co_filename, number).strip()
    return f"{code.co_filename.rsplit('/', 1)[-1]}:{number}" + (f": {text}" if text else "")


def code_of(function: Any) -> CodeType | None:
    """The Python code of a function; None if it has none."""
    return getattr(python_function(function), "__code__", None)


def python_function(function: Any) -> FunctionType | None:
    """The Python function behind a partial, a decorated function, a method or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType) and not inspect.ismethod(function):
        function = getattr(type(function), "__call__", None)  # noqa: B004  the code that a call runs is asked for
    function = getattr(function, "__func__", function)
    return function if isinstance(function, FunctionType) else None
