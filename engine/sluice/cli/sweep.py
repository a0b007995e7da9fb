"""``sluice sweep``: which draft length is the fastest, by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli.faults import warn
from sluice.cli.files import check_output_folder
from sluice.cli.interrupt import Interrupt
from sluice.cli.options import Command, knob_option
from sluice.cli.output import Output
from sluice.cli.sweep_progress import SweepProgress
from sluice.config import grouped
from sluice.errors import RequestError, SystemFault

if TYPE_CHECKING:
    from sluice.cli.sweep_plan import Plan
    from sluice.sweep.row import Identity
    from sluice.sweep.runner import Target

_PATH = click.Path(path_type=Path)
_KNOBS = ("threads", "ubatch", "flash_attn", "numerics", *grouped("streaming", "cache"))


def _knobs(command: Command) -> Command:
    for name in reversed(_KNOBS):
        command = knob_option(name)(command)
    return command


@click.command()
@click.argument("model", required=False)
@click.option("out", "--out", metavar="FOLDER", type=_PATH, help="Where rows, table, plots and page"
              " go; a sweep that was stopped goes on there.")  # fmt: skip
@click.option("arms", "--arm", metavar="ARM", multiple=True, help='Add an arm, as in off or'
              ' "n_max=3,p_min=0.6,n_min=2".')  # fmt: skip
@click.option("arms_only", "--arms-only", is_flag=True, help="Leave the default arms out.")
@click.option("workloads", "--workload", metavar="NAME|FILE", multiple=True, help="Take this one of"
              " the default workloads only; or add the prompts of a file.")  # fmt: skip
@click.option("workloads_only", "--workloads-only", is_flag=True, help="Leave the default workloads"
              " out.")  # fmt: skip
@click.option("repeats", "--repeats", metavar="N", type=int, default=3, help="How often each"
              " request is made; the noise floor needs 2.  [1 to 1000; default: 3]")  # fmt: skip
@click.option("n", "-n", "--predict", metavar="N", type=int, help="Tokens a request at most."
              "  [default: the workload's]")  # fmt: skip
@click.option("ctx", "-c", "--ctx-size", metavar="N", type=int, help="Context length in tokens."
              "  [default: 4096, or what the prompts need]")  # fmt: skip
@_knobs
@click.option("server", "--server", metavar="URL", help="Sweep the llama-server that is there, as"
              " the one arm that --arm names.")  # fmt: skip
@click.option("server_cmd", "--server-cmd", metavar='"CMD"', help="Start a llama-server for each"
              ' arm, as in "llama-server -m MODEL -t 8".')  # fmt: skip
@click.option("timeout_s", "--timeout", metavar="S", type=float, default=600.0, help="Longest wait"
              " for a server's answer, and for it to be ready.  [default: 600]")  # fmt: skip
@click.option("replay", "--replay", metavar="FILE|FOLDER", type=_PATH, help="Measure nothing: show"
              " the rows of a sweep again, and with --out draw them.")  # fmt: skip
@click.option("pair", "--compare", metavar="A B", nargs=2, type=_PATH, help="Measure nothing: set"
              " two sweeps side by side.")  # fmt: skip
@click.option("as_json", "--json", is_flag=True, help="Print one JSON object, not the table.")
@click.pass_context
def sweep(
    context: click.Context,
    /,
    model: str | None,
    out: Path | None,
    replay: Path | None,
    pair: tuple[Path, Path] | None,
    as_json: bool,
    timeout_s: float,
    **given: Any,
) -> int | None:
    """Time every draft length on MODEL, and say which is the fastest.

    MODEL is a gguf or the word bundled; with --server or --server-cmd it may be left out. Arms by
    workloads by prompts, interleaved and repeated; a request that fails costs its own row. Exit
    codes: 0 swept, 2 the request is wrong, 3 nothing could be measured.
    """
    output = Output()
    if replay is not None or pair is not None:
        _refuse_beside(context, "--replay" if replay is not None else "--compare")
        if replay is not None:
            _replay(replay, out, as_json, output)
        elif pair is not None:
            _compare(*pair, out, as_json, output)
        return None
    if out is None:
        raise RequestError("--out is missing: give the folder that the rows go to")
    if not 0 < timeout_s < 1e6:
        raise RequestError(f"--timeout {timeout_s:g}: must be a number of seconds above 0")
    from sluice.cli.sweep_plan import plan

    values = {name: given.pop(name) for name in (*_KNOBS, "ctx")}
    set_here = [name for name in values if _is_given(context, name)]
    asked = plan(model, **given, values=values, given=set_here)
    return _sweep(asked, check_output_folder("--out", out), timeout_s, as_json, output)


def _sweep(asked: Plan, out: Path, timeout_s: float, as_json: bool, output: Output) -> int:
    from sluice.sweep.folder import write_prompts, write_report
    from sluice.sweep.report import report
    from sluice.sweep.rows import Recorded, RowFile
    from sluice.sweep.runner import Runner
    from sluice.sweep.schedule import schedule
    from sluice.targets.server_process import end_all

    progress = SweepProgress(asked.repeats)

    def before() -> None:
        progress.close()
        end_all()

    with Interrupt(before=before) as interrupt:
        identity, target = _target(asked, timeout_s, progress)
        visits = schedule(asked.arms, asked.workloads, asked.repeats)
        total = sum(len(visit.requests) for visit in visits)

        def say(n_done: int, n_total: int) -> None:
            interrupt.line = (
                f"interrupted; {n_done} of {n_total} requests are in {out}: the same command goes"
                f" on from there, sluice sweep --replay {out} shows them"
            )

        with RowFile(out, identity, asked.workloads) as rows:
            done = rows.done
            n_there = sum(one.key in done for visit in visits for one in visit.requests)
            if n_there:
                click.echo(f"sweep: {n_there} of {total} requests are there already", err=True)
            say(n_there, total)
            progress.on_written = say
            write_prompts(out, asked.workloads)
            runner = Runner(target, rows, progress, interrupt.held_back)
            try:
                runner.run(visits)
            finally:
                progress.close()
                runner.close()
            with interrupt.held_back():
                found = report(Recorded(identity, rows.rows))
                try:
                    write_report(out, found)
                except SystemFault:  # no plots, or no room: what was measured is shown all the same
                    _print(found, as_json, output)
                    raise
    _print(found, as_json, output)
    if found.n_failed:
        warn(f"{found.n_failed} requests failed, for the reasons above; the same command makes"
             " them again")  # fmt: skip
    if not found.n_ok:
        raise SystemFault(f"nothing was measured: every request failed or was refused; {out} says"
                          " why")  # fmt: skip
    return 0


def _target(asked: Plan, timeout_s: float, progress: SweepProgress) -> tuple[Identity, Target]:
    """Whose figures they will be, and what opens the arms."""

    def warn_clear_of_bars(text: str) -> None:
        progress.close()
        warn(text)

    if asked.config is not None:
        from sluice.sweep.engine_arms import EngineArms, engine_identity

        arms = EngineArms(asked.config, warn_clear_of_bars)
        return engine_identity(asked.config, asked.n), arms
    from sluice.sweep.server_arms import GivenArm, StartedArms, given_identity, started_identity

    if asked.command is not None:
        started = StartedArms(asked.command, timeout_s)
        return started_identity(asked.command, asked.model, asked.n), started
    from sluice.targets.server import ServerTarget

    assert asked.url is not None
    server = ServerTarget(asked.url, timeout_s=timeout_s)
    return given_identity(server, asked.model, asked.n), GivenArm(server)


def _replay(path: Path, out: Path | None, as_json: bool, output: Output) -> None:
    from sluice.sweep.folder import write_report
    from sluice.sweep.report import report
    from sluice.sweep.rows import read

    found = report(read(path))
    if out is not None:
        write_report(check_output_folder("--out", out), found)
    _print(found, as_json, output)


def _compare(a: Path, b: Path, out: Path | None, as_json: bool, output: Output) -> None:
    from sluice.sweep.compare import compare, compared_screen
    from sluice.sweep.document import to_json
    from sluice.sweep.rows import read
    from sluice.telemetry.files import write_whole

    found = compare(read(a), read(b))
    text, values = compared_screen(found, str(a), str(b)), to_json(found.as_dict())
    if out is not None:
        folder = check_output_folder("--out", out)
        write_whole(folder / "compare.txt", text)
        write_whole(folder / "compare.json", values)
    output.write(values if as_json else text)


def _print(found: Any, as_json: bool, output: Output) -> None:
    from sluice.sweep.document import document, to_json
    from sluice.sweep.screen import screen

    output.write(to_json(document(found)) if as_json else screen(found))


def _refuse_beside(context: click.Context, flag: str) -> None:
    """``--replay`` and ``--compare`` measure nothing, so that nothing else has a meaning."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in ("out", "as_json") or flag in parameter.opts:
            continue
        if _is_given(context, name):
            said = parameter.opts[0] if isinstance(parameter, click.Option) else "MODEL"
            raise RequestError(f"{said} with {flag}: {flag} measures nothing; drop {said}")


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
