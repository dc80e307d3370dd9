"""How a function becomes a command: every one gets a session, and --store, --json and --debug."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli.output import Output
from penstock.cli.session import Session

F = TypeVar("F", bound=Callable[..., Any])

_PANEL = "On every command"
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH|URL|YAML",
        help="The store: a folder, a URL or a penstock.yaml. Without it: PENSTOCK_STORE, ./penstock.yaml, "
        "./penstock-data.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="JSON, one object a line, instead of a table.", rich_help_panel=_PANEL)
]
Debug = Annotated[
    bool, typer.Option("--debug", help="With an error, show the traceback too.", rich_help_panel=_PANEL)
]
COMMON: dict[str, tuple[Any, Any]] = {
    "store": (Store, None),
    "as_json": (Json, False),
    "debug": (Debug, False),
}


class _PlainFlags:
    """Help that does not say `<bool>` behind every flag."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]  # of the class that it is mixed into
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Command(_PlainFlags, TyperCommand):
    """One command."""


class Group(_PlainFlags, TyperGroup):
    """A command that has commands below it."""


def command(
    app: typer.Typer, name: str, *, options: dict[str, tuple[Any, Any]] | None = None, **settings: Any
) -> Callable[[F], F]:
    """Register `function(session, …)`; it returns its exit code, None for 0.

    `options` (name -> annotation and default) arrive in its `**` argument: for sets that commands share.
    """

    def register(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [p.replace(annotation=hints[p.name]) for p in own if p.kind is not p.VAR_KEYWORD]
        for extra, (annotation, default) in {**(options or {}), **COMMON}.items():
            parameters.append(
                inspect.Parameter(
                    extra, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
            )
        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

        @functools.wraps(function)
        def run(*, ctx: typer.Context, **values: Any) -> Any:
            return function(session_of(ctx, values), **values)

        ordered = sorted([*parameters, context], key=lambda p: p.kind is inspect.Parameter.KEYWORD_ONLY)
        signature = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in ordered])
        run.__signature__ = signature  # type: ignore[attr-defined]  # how `inspect` is told
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        app.command(name, cls=Command, **settings)(run)
        return function

    return register


def session_of(ctx: typer.Context, values: dict[str, Any]) -> Session:
    """Take the common options out of a command's values; those before the command count too."""
    before: list[dict[str, Any]] = []
    above = ctx.parent
    while above is not None:
        before.append(above.params)
        above = above.parent
    values.pop("debug")
    store = values.pop("store") or next((found["store"] for found in before if found.get("store")), None)
    as_json = values.pop("as_json") or any(found.get("as_json") for found in before)
    if as_json and values.get("raw"):
        raise typer.BadParameter("--raw and --json exclude each other; choose one")
    return Session(store, Output(as_json=as_json))
