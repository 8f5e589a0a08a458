"""How `fleet` is put together: commands and groups with one form of help, loaded when needed.

Rules:
- A command's help is its docstring; its `Examples:` are shown as the last part of the page.
- A group that is called without a command shows its help; that is no fault.
- A module of commands is imported when one of its commands is asked for, so that a listing does
  not wait for the packager.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from wire.console.help_page import HELP_TEXT, Entry, HelpPage, render

Commands = Mapping[str, Callable[..., object]]
"""Name and function of each command of a group."""

EXAMPLES: Final = "\nExamples:\n"
WHAT: Final[Mapping[type, str]] = {
    bool: "yes or no",
    str: "text",
    Path: "a path",
    int: "a whole number",
    float: "a number",
}
VALUE_NAMES: Final[Mapping[object, str]] = {int: "N", float: "NUMBER", Path: "FILE"}


class PlainValue:
    """Reads the values of a parameter, in place of pydantic, whose import takes 0.2 s.

    Args:
        kind: What a value becomes.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - Typer's
        """Convert what was typed to the type that the command takes.

        Raises:
            BadParameter: It cannot be read, or is out of range.
        """
        is_many = param.multiple or param.nargs != 1
        if value is None:
            return () if is_many else None
        values = [self._read(item, param, ctx) for item in (value if is_many else [value])]
        return values if is_many else values[0]

    def _read(self, text: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - Typer's
        try:
            value = self._kind(text)
        except ValueError as exc:
            raise typer.BadParameter(f"{text!r} is not {WHAT[self._kind]}", ctx, param) from exc
        if param.min is not None and not value >= param.min:
            raise typer.BadParameter(f"{text} is less than {param.min:g}", ctx, param)
        if param.max is not None and not value <= param.max:
            raise typer.BadParameter(f"{text} is more than {param.max:g}", ctx, param)
        return value


class Command(TyperCommand):
    """A command whose help is a page of `wire.console.help_page`."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401, D102 - Typer's
        return _read_plainly(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, D102 - Typer's
        formatter.write(_page(self, ctx, ()))


class Group(TyperGroup):
    """Commands under one name."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401, D102 - Typer's
        return _read_plainly(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401, D102 - Typer's
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401, D102 - Typer's
        self.suggest_commands = False  # Typer knows none that is loaded when it is asked for
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as exc:
            if not hasattr(exc, "possibilities"):
                meant = get_close_matches(args[0], self.list_commands(ctx))
                vars(exc)["possibilities"] = meant  # as Typer has it for options
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, D102 - Typer's
        formatter.write(_page(self, ctx, self.entries(ctx)))

    def entries(self, ctx: Any) -> list[Entry]:  # noqa: ANN401 - Typer does not export its type
        """Return the group's commands as its help shows them."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [Entry(name, first_paragraph(command)) for name, command in found if command]


def lazy_group(modules: Mapping[str, tuple[str, str]]) -> type[Group]:
    """Return the class of a group that imports its commands when they are asked for.

    Args:
        modules: For each command the module that registers it, and the first words of its help.

    Returns:
        The class.
    """

    class LazyGroup(Group):
        """A group whose commands are known by name."""

        def list_commands(self, _ctx: Any) -> list[str]:  # noqa: ANN401 - Typer's
            return list(modules)

        def get_command(self, _ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - Typer's
            if cmd_name not in modules:
                return None
            app = typer.Typer(rich_markup_mode=None)
            app.callback()(lambda: None)  # a group, even of one command
            importlib.import_module(modules[cmd_name][0]).register(app)
            return typer.main.get_group(app).commands[cmd_name]

        def entries(self, _ctx: Any) -> list[Entry]:  # noqa: ANN401 - Typer's
            return [Entry(name, text) for name, (_, text) in modules.items()]

    return LazyGroup


def add_command(app: typer.Typer, name: str, function: Callable[..., object]) -> None:
    """Add a command.

    Args:
        app: The application that gets it.
        name: As it is typed.
        function: What it does; its parameters are the command's, its docstring is the help.
    """
    app.command(name, cls=Command)(function)


def add_group(app: typer.Typer, name: str, text: str, commands: Commands) -> None:
    """Add a group of commands.

    Args:
        app: The application that gets it.
        name: As it is typed.
        text: Its help; its examples are the first example of each command.
        commands: Its commands.
    """
    group = typer.Typer(cls=Group, help=text, rich_markup_mode=None)
    for command, function in commands.items():
        add_command(group, command, function)
    app.add_typer(group, name=name)


def first_paragraph(command: Any) -> str:  # noqa: ANN401 - Typer does not export its type
    """Return the first paragraph of a command's help, as a list of commands shows it."""
    return " ".join(split_help(command)[0].split("\n\n", maxsplit=1)[0].split())


def split_help(command: Any) -> tuple[str, list[str]]:  # noqa: ANN401 - Typer's
    """Return the text and the examples of a command's help.

    The examples of a group are the first ones of its commands.
    """
    text, _, examples = (command.help or "").partition(EXAMPLES)
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    if isinstance(command, TyperGroup) and not lines:
        lines = [example for sub in command.commands.values() for example in split_help(sub)[1][:1]]
    return text.strip(), lines


def _read_plainly(params: list[Any]) -> list[Any]:
    for param in params:
        annotation = param.type_descriptor.annotation
        kind = get_args(annotation)[0] if get_origin(annotation) is list else annotation
        if kind in WHAT:
            param._runtime_param = PlainValue(kind)  # noqa: SLF001 - a later Typer is only slower
    return params


def _page(command: Any, ctx: Any, commands: list[Entry] | tuple[()]) -> str:  # noqa: ANN401 - Typer's
    text, examples = split_help(command)
    params = command.get_params(ctx)
    arguments = [param for param in params if isinstance(param, TyperArgument)]
    options = [param for param in params if isinstance(param, TyperOption) and not param.hidden]
    usage = [ctx.command_path]
    usage += [f"{option.opts[-1]} {_value_name(option)}" for option in options if option.required]
    usage += ["[OPTIONS]", *map(_usage_name, arguments)]
    if isinstance(command, TyperGroup):
        usage.append("COMMAND ...")
    return render(
        HelpPage(
            usage=" ".join(usage),
            text=text,
            arguments=[Entry(_usage_name(a), a.help or "", _notes(a)) for a in arguments],
            options=[_option_entry(option) for option in options],
            commands=commands,
            examples=examples,
        ),
        shutil.get_terminal_size().columns,
    )


def _option_entry(option: TyperOption) -> Entry:
    names = ", ".join([*sorted(option.opts, key=len), *option.secondary_opts])
    value = "" if option.is_flag else f" {_value_name(option)}"
    text = HELP_TEXT if "--help" in option.opts else option.help or ""
    return Entry(names + value, text, _notes(option))


def _usage_name(argument: TyperArgument) -> str:
    name = argument.metavar or argument.name.upper()
    more = "..." if argument.nargs != 1 and not name.endswith("...") else ""
    return f"{name}{more}" if argument.required else f"[{name}{more}]"


def _value_name(option: TyperOption) -> str:
    return option.metavar or VALUE_NAMES.get(option.type_descriptor.annotation, "TEXT")


def _notes(param: TyperArgument | TyperOption) -> tuple[str, ...]:
    notes = []
    if param.required:
        notes.append("required")
    if param.multiple:
        notes.append("repeatable")
    if param.default is not False and param.default not in (None, ""):
        notes.append(f"default: {param.default}")
    if param.min is not None and param.max is not None:
        notes.append(f"{param.min:g} to {param.max:g}")
    elif param.min is not None:
        notes.append(f"at least {param.min:g}")
    return tuple(notes)
