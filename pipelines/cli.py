"""The `tidegate` command."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidegate.pipelines.process import prepared
from tidegate.version import __version__

SPEC_IS_WRONG, RUN_FAILED, INTERRUPTED = 2, 1, 130
Value = TypeVar("Value")


def main() -> None:
    """Entry point: errors become one sentence and an exit code."""
    logging.getLogger().setLevel(logging.CRITICAL)  # Beam complains while it is imported
    try:
        with prepared():
            command.main(standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):  # click makes the one of the other
        _say("interrupted; windows that are published stay, nothing else was left visible: run again to go on")
        sys.exit(INTERRUPTED)
    except OSError as problem:
        _say(f"{problem.strerror or type(problem).__name__}: {problem.filename or 'no file named'}")
        sys.exit(RUN_FAILED)
    except Exception as problem:
        from tidegate.transforms.problems import SafeError, SpecError  # brings Beam along, which --help can do without

        if not isinstance(problem, SafeError):
            raise
        _say(str(problem))
        sys.exit(SPEC_IS_WRONG if isinstance(problem, SpecError) else RUN_FAILED)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: tidegate simulate out/  then  tidegate check spec.yaml  and  tidegate run spec.yaml",
)
@click.version_option(__version__, prog_name="tidegate")
def command() -> None:
    """Differentially private releases, window by window, from streams whose keys nobody listed beforehand."""


@command.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For programs: the same as JSON.")
def check(spec: Path, as_json: bool) -> None:
    """Validate SPEC and say what it promises, before anything runs.

    \b
    Examples:
      tidegate check spec.yaml
      tidegate check spec.yaml --json | jq .gate.half_width
    """
    from tidegate.pipelines.check import check as promise
    from tidegate.pipelines.check import print_check
    from tidegate.pipelines.job import quiet_logging
    from tidegate.pipelines.spec import load_spec

    quiet_logging(verbose=False)
    loaded = load_spec(spec)
    report = promise(loaded)
    if as_json:
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print_check(report, Console())


@command.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option(
    "--like", type=click.Path(path_type=Path), help="Exact counts of one window: .csv or .parquet, key,count."
)
@click.option("--shape", help="Counts by a law instead: zipf:keys=100000,units=1000000,exponent=1.1")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the chances of all gates to a .png or .svg file.")
@click.option("--figures", is_flag=True, help="The literature's figures beside exact ones; needs no SPEC.")
@click.option("--json", "as_json", is_flag=True, help="For programs: the same as JSON.")
def plan(
    spec: Path | None, like: Path | None, shape: str | None, plot: Path | None, figures: bool, as_json: bool
) -> None:
    """Say which keys SPEC will let through, what it costs, and what a change would do, before launch.

    Reads the spec and no event. Counts for --like are exact ones: what is said of them is for the planner's eyes, not
    private, and not to be published.

    \b
    Examples:
      tidegate plan spec.yaml
      tidegate plan spec.yaml --plot curve.svg
      tidegate plan spec.yaml --like counts.csv
      tidegate plan spec.yaml --shape zipf:keys=100000,units=1000000,exponent=1.1
      tidegate plan spec.yaml --json | jq .gates
      tidegate plan --figures
    """
    from dataclasses import asdict

    from tidegate.mechanisms.literature import figures as known_figures
    from tidegate.pipelines import plan_show
    from tidegate.pipelines.job import quiet_logging
    from tidegate.pipelines.plan import plan as make_plan
    from tidegate.pipelines.plan_counts import parse_shape, read_counts
    from tidegate.pipelines.spec import load_spec

    quiet_logging(verbose=False)
    if spec is None and (not figures or like or shape or plot):
        raise click.UsageError("Missing argument 'SPEC'.")
    if like is not None and shape is not None:
        raise click.UsageError("--like and --shape are two answers to one question; give one of them.")
    report: dict[str, Any] = {}
    if spec is not None:
        loaded = load_spec(spec)
        seen = read_counts(like) if like is not None else parse_shape(shape) if shape is not None else None
        report = make_plan(loaded, seen)
        if plot is not None:
            plan_show.draw_plan(report, plot)
    if as_json:
        told = {"figures": [asdict(row) for row in known_figures()]} if figures else {}
        click.echo(json.dumps(report | told, indent=2, ensure_ascii=False))
        return
    if report:
        plan_show.print_plan(report, Console())
    if figures:
        plan_show.print_figures(known_figures(), Console())


@command.command(context_settings={"ignore_unknown_options": False})
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--runner", default="direct", show_default=True, help="direct, or the name of a Beam runner.")
@click.option(
    "--shards",
    type=click.IntRange(1, 4096),
    help="Parts that units and keys are split into; by default one a worker. Releases do not depend on it.",
)
@click.option("--verbose", is_flag=True, help="Show Beam's own messages.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
def run(spec: Path, beam_options: tuple[str, ...], runner: str, shards: int | None, verbose: bool, quiet: bool) -> None:
    """Release every window of SPEC, each exactly once. Options for Beam follow after --.

    Windows that are published already are left as they are, so an interrupted run is simply run again.

    \b
    Examples:
      tidegate run spec.yaml
      tidegate run spec.yaml -- --direct_num_workers=2 --direct_running_mode=multi_processing
    """
    from tidegate.pipelines.job import quiet_logging
    from tidegate.pipelines.job import run as run_job
    from tidegate.pipelines.progress import ProgressLog, Watching
    from tidegate.pipelines.sinks import make_private_folder
    from tidegate.pipelines.spec import load_spec
    from tidegate.transforms.problems import SpecError

    quiet_logging(verbose)
    console = Console(stderr=True)
    loaded = load_spec(spec)
    arguments: dict[str, Any] = {"runner": runner, "beam_options": beam_options, "shards": shards}
    for warning in loaded.warnings() if not quiet else []:
        console.print(f"[yellow]note[/yellow] {escape(warning)}", highlight=False, soft_wrap=True)
    if quiet or runner != "direct":
        counters = run_job(loaded, **arguments)
    else:
        try:
            make_private_folder(Path(loaded.state))
        except OSError as problem:
            raise SpecError(
                f"state must be a folder that can be written, and {loaded.state} is none ({problem.strerror}); "
                f"write another folder"
            ) from None
        log = ProgressLog(str(Path(loaded.state) / "progress"))
        with Watching(log, loaded.window.windows.count, console):
            counters = run_job(loaded, log=log, **arguments)
    if not quiet:
        _summarise(dict(counters), ", ".join(sink.place for sink in loaded.sink), console)


def _summarise(counters: dict[str, int], place: str, console: Console) -> None:
    new, old = counters.get("windows_published", 0), counters.get("windows_unchanged", 0)
    before = f", {old} were there already" if old else ""
    console.print(f"[green]released[/green] {new} windows to {escape(place)}{before}", highlight=False, soft_wrap=True)
    dead = sum(amount for name, amount in counters.items() if name.startswith("dead_"))
    notes = [f"{counters.get('rows_read', 0):,} rows read"]
    if dead:
        reasons = ", ".join(f"{a:,} {n.removeprefix('dead_')}" for n, a in counters.items() if n.startswith("dead_"))
        notes.append(f"{dead:,} dead letters ({reasons})")
    if counters.get("rows_left_out"):
        notes.append(f"{counters['rows_left_out']:,} left out by the spec")
    if counters.get("rows_outside_range"):
        notes.append(f"{counters['rows_outside_range']:,} outside the range")
    late = counters.get("rows_in_windows", 0) - counters.get("rows_counted", 0)
    if late > 0:
        notes.append(f"{late:,} too late for their window")
    console.print(f"for the operator: {'; '.join(notes)}", highlight=False, soft_wrap=True)


@command.command()
@click.argument("releases", type=str)
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "jsonl", "csv", "parquet", "avro"]),
    default="table",
    show_default=True,
    help="table for people, the others for programs.",
)
@click.option("--window", "windows", multiple=True, help="Only the window that begins at this time; may be repeated.")
@click.option("--key", "keys", multiple=True, help="Only this key; may be repeated.")
@click.option("--out", type=click.Path(path_type=Path), help="Write to a file instead of standard output.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Rows of the table for people.")
@click.option("--allow-gaps", is_flag=True, help="Read on although a window is missing.")
@click.option("--security", type=str, help="For a topic: the file with what is needed to connect.")
def read(
    releases: str,
    beam_options: tuple[str, ...],
    kind: str,
    windows: tuple[str, ...],
    keys: tuple[str, ...],
    out: Path | None,
    limit: int,
    allow_gaps: bool,
    security: str | None,
) -> None:
    """Show what is published in RELEASES, a folder or a topic. Fails if a window is missing.

    Options for Beam follow after --, such as those that a remote folder is reached with.

    \b
    Examples:
      tidegate read releases/
      tidegate read releases/ --window 2026-01-01T08:00:00Z --key "tide tables"
      tidegate read releases/ --format csv > releases.csv
      tidegate read kafka://localhost:9092/releases
      tidegate read s3://bucket/releases -- --s3_endpoint_url=http://localhost:9000
    """
    from tidegate.pipelines.job import quiet_logging
    from tidegate.pipelines.reader import read_releases
    from tidegate.pipelines.remote import reach

    quiet_logging(verbose=False)
    reach(beam_options)
    table = read_releases(
        releases, windows=windows or None, keys=keys or None, allow_gaps=allow_gaps, security=security
    )
    if kind == "table" and out is None:
        _print_rows(table, limit)
        return
    data = _encode(table, kind if kind != "table" else "jsonl")
    if out is not None:
        out.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@command.command()
@click.argument("releases", type=str)
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--overdue-after", default="60s", show_default=True, help="How long after it was due a window is overdue."
)
@click.option("--once", is_flag=True, help="Look once, and fail if a window is overdue: for monitoring.")
@click.option("--top", type=click.IntRange(0), default=0, help="Show so many of a window's largest counts.")
@click.option("--security", type=str, help="For a topic: the file with what is needed to connect.")
def watch(
    releases: str, beam_options: tuple[str, ...], overdue_after: str, once: bool, top: int, security: str | None
) -> None:
    """Follow what is published in RELEASES, a folder or a topic, and say when a window is overdue.

    Options for Beam follow after --.

    \b
    Examples:
      tidegate watch releases/
      tidegate watch releases/ --once --overdue-after 5m || alert
      tidegate watch kafka://localhost:9092/releases
    """
    from tidegate.pipelines import watch as watching
    from tidegate.pipelines.job import quiet_logging
    from tidegate.pipelines.reader import ReadError, list_published
    from tidegate.pipelines.remote import reach
    from tidegate.transforms.terms import parse_duration

    quiet_logging(verbose=False)
    reach(beam_options)
    patience, console = timedelta(seconds=_parsed("--overdue-after", parse_duration, overdue_after)), Console()
    if once:
        coming = watching.due(list_published(releases, security))
        late = None if coming is None else datetime.now(UTC) - coming[1]
        if coming is not None and late is not None and late > patience:
            raise ReadError(f"the window that begins at {coming[0]:%Y-%m-%dT%H:%M:%SZ} is overdue since {_age(late)}")
        console.print("no window is overdue", highlight=False)
        return
    for event in watching.watch(releases, security, patience):
        if isinstance(event, watching.Seen):
            rows, after = event.window.manifest["rows"], event.after
            told = "" if after is None else f", {_age(after)} after it was due"
            console.print(f"{event.window.start:%Y-%m-%dT%H:%M:%SZ}  {rows:,} rows{told}", highlight=False)
            for row in watching.largest(event.window, top):
                console.print(Text(f"  {_number(row['value']):>12}  ") + _printable(row["key"]), highlight=False)
        elif isinstance(event, watching.Overdue):
            console.print(
                f"[red]{event.start:%Y-%m-%dT%H:%M:%SZ}  overdue since {_age(event.since)}[/red]", highlight=False
            )
        else:
            console.print(f"all {event.windows:,} windows are out", highlight=False)


def _age(span: timedelta) -> str:
    return (
        f"{span.total_seconds():.1f} s"
        if span < timedelta(minutes=2)
        else str(timedelta(seconds=int(span.total_seconds())))
    )


def _encode(table: Any, kind: str) -> bytes:
    from tidegate.pipelines.publish import encode_rows, to_csv

    if kind == "csv":
        return to_csv(table)
    return encode_rows(table, kind)  # type: ignore[arg-type]


def _print_rows(table: Any, limit: int) -> None:
    from tidegate.pipelines.publish import plain

    shown = Table(title=f"{len(table):,} released rows" + (f", the first {limit}" if len(table) > limit else ""))
    for name, justify in (
        ("window", "left"),
        ("measure", "left"),
        ("key", "left"),
        ("value", "right"),
        ("range", "right"),
    ):
        shown.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in map(plain, table.slice(0, limit).to_pylist()):
        key = _printable(row["key"])
        value_range = "" if row["low"] is None else f"{_number(row['low'])} to {_number(row['high'])}"
        shown.add_row(row["window_start"], row["measure"], key, _number(row["value"]), value_range)
    Console().print(shown)


def _printable(key: str) -> Text:
    """Keys are whatever people typed: no markup, and nothing that a terminal would obey."""
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in key))


def _number(value: float | None) -> str:
    """As people read it: whole numbers whole, others to six digits, nothing where nothing is said."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


@command.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--events", default=200_000, show_default=True, type=int)
@click.option("--units", default=5_000, show_default=True, type=int)
@click.option("--keys", default=400, show_default=True, type=int)
@click.option("--windows", default=24, show_default=True, type=int)
@click.option("--window-size", default="1h", show_default=True, help="Such as 15m, 1h, 1d.")
@click.option("--start", default="2026-01-01T00:00:00Z", show_default=True)
@click.option("--keys-per-unit", default=3, show_default=True, type=int, help="Most keys of a unit in a window.")
@click.option("--skew", default=1.1, show_default=True, type=float, help="Zipf exponent of the keys' popularity.")
@click.option("--churn", default=0.3, show_default=True, type=float, help="Share of keys that are born or die.")
@click.option("--bad", default=0.0, show_default=True, type=float, help="Share of rows that cannot be read.")
@click.option("--duplicates", default=0.0, show_default=True, type=float, help="Share of rows that are repeats.")
@click.option(
    "--late", default=0.0, show_default=True, type=float, help="Share of rows in a later file than their time."
)
@click.option("--outside", default=0.0, show_default=True, type=float, help="Share of rows outside the range.")
@click.option("--files", default=4, show_default=True, type=int)
@click.option(
    "--format",
    "kind",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "avro", "jsonl", "csv", "jsonl.gz", "csv.gz"]),
)
@click.option("--seed", default=0, show_default=True, type=int)
def simulate(out: Path, window_size: str, start: str, kind: str, **numbers: Any) -> None:
    """Make a stream of searches with known truth in the folder OUT: events-*, truth.parquet, simulation.json.

    \b
    Examples:
      tidegate simulate out/
      tidegate simulate out/ --events 1000000 --format jsonl.gz --bad 0.01 --late 0.05
    """
    from tidegate.pipelines.simulate import Simulation
    from tidegate.pipelines.simulate import simulate as make
    from tidegate.transforms.problems import SpecError
    from tidegate.transforms.terms import parse_duration, parse_instant

    begin = _parsed("--start", parse_instant, start)
    length = timedelta(seconds=_parsed("--window-size", parse_duration, window_size))
    try:
        simulation = Simulation(start=begin, window_size=length, format=kind, **numbers)
        with click.progressbar(length=simulation.windows, label="simulating", file=sys.stderr) as bar:
            make(out, simulation, lambda done, _: bar.update(done - bar.pos))
    except ValueError as problem:
        raise SpecError(str(problem)) from None
    click.echo(f"events and truth are in {out}", err=True)


@command.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("demo"))
def demo(folder: Path) -> None:
    """Simulate a day of searches in FOLDER (demo/ unless named), release it, and hold it against the truth.

    \b
    Examples:
      tidegate demo
      tidegate demo elsewhere/
    """
    with Console(stderr=True).status("starting"):
        from tidegate.pipelines.demo import run_demo
        from tidegate.pipelines.job import quiet_logging

    quiet_logging(verbose=False)
    run_demo(folder)


def _parsed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    from tidegate.transforms.problems import SpecError

    try:
        return parse(text)
    except ValueError as problem:
        raise SpecError(f"{option} {problem}") from None


def _say(sentence: str) -> None:
    click.echo(f"tidegate: {sentence}", err=True)
