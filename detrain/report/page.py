"""The page: one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from detrain.errors import MissingExtra, UsageError
from detrain.plans.units import size_text
from detrain.report import markup, pipelines, ranks
from detrain.report.history import History, read
from detrain.report.metrics import Series

#: What the title of every page ends with, and where it stands at the latest.
_TITLE, _TITLE_WITHIN_BYTES = " — detrain report", 4096
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; background: #f8fafc; margin: 0; }
main { max-width: 1060px; margin: 0 auto; padding: 24px 20px 60px; }
html { overflow-y: scroll; }  /* from the start, or charts are drawn as wide as the page was without its bar */
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 8px; }
p { margin: 6px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 18px 0; }
.card { background: #fff; border: 1px solid #e5e7eb; border-radius: 8px; padding: 10px 14px; }
.card b { display: block; font-size: 20px; overflow-wrap: anywhere; }
.card span, .quiet { color: #6b7280; font-size: 13px; }
.figure { background: #fff; border: 1px solid #e5e7eb; border-radius: 8px; padding: 4px; margin: 8px 0; min-width: 0; overflow: hidden; }
.figure .name { font-size: 13px; font-weight: 600; padding: 4px 10px 0; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); gap: 0 10px; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: #fff; font-size: 13px; }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid #e5e7eb; overflow-wrap: break-word; }
td { max-width: 420px; }
th { color: #6b7280; font-weight: 600; }
.good { color: #047857; font-weight: 600; }
.bad { color: #b91c1c; font-weight: 600; }
code { background: #eef2f7; padding: 1px 5px; border-radius: 4px; overflow-wrap: anywhere; }
"""


def write(folder: Path, target: Path) -> None:
    """Write the page of a run. Raises `UsageError` if this is no run, if plotly is missing, or if the file cannot be written."""
    text = compose(read(folder), f"<script>{plotly_script()}</script>")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error}") from None


def plotly_script() -> str:
    """What draws the charts. Raises `MissingExtra`."""
    try:
        import plotly.offline
    except ImportError:
        raise MissingExtra("the report is drawn with plotly, which is not installed", "report") from None
    return str(plotly.offline.get_plotlyjs())


def check_own(target: Path) -> None:
    """Raises `UsageError` if there is a file of this name that is no earlier report."""
    if target.exists() and _TITLE.encode() not in target.read_bytes()[:_TITLE_WITHIN_BYTES]:
        raise UsageError(f"{target} exists and is not a report of detrain; name another file with -o")


def compose(history: History, head: str, above: str = "") -> str:
    """The page's text. `head`: what loads the script that draws; `above`: what stands before everything else."""
    title = f"{history.record.name}{_TITLE}"
    parts = [
        f"<h1>{escape(_command(history))}</h1>", f"<p class=quiet>{escape(str(history.path.resolve()))}</p>", _cards(history),
        *_curves(history), *_life(history), *ranks.section(history), *pipelines.section(history),
        *_checkpoints(history), *_proof(history), *_surroundings(history),
    ]  # fmt: skip
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        f'<meta name=viewport content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
        f"{head}</head>\n<body>{above}<main>\n" + "\n".join(parts) + "\n</main></body></html>\n"
    )


def _command(history: History) -> str:
    return " ".join([Path(history.record.script).name, *history.record.arguments])


def _cards(history: History) -> str:
    run = history.run
    state = "finished" if run["is_finished"] else "running" if run["held_by"] else "stopped"
    cards = [
        (state, f"began {run['began']}" + (f", ended {run['ended']}" if run["ended"] else "")),
        (f"{history.batches:,}", "batches"),
        (str(run["attempts"]), _attempts(history)),
        (f"{history.num_replayed:,}", "batches done again after kills, by the ledger"),
        (
            str(len(history.ledger.saved)),
            f"{'cuts' if history.ranks else 'checkpoints'} taken, {len(run['checkpoints'])} kept",
        ),
        *([(str(run["num_ranks"]), "ranks")] if history.ranks else []),
        (_verdict(history)[0], "proof"),
    ]
    return (
        "<div class=cards>"
        + "".join(f"<div class=card><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in cards)
        + "</div>"
    )


def _attempts(history: History) -> str:
    """Behind their number."""
    word = "attempt" if history.run["attempts"] == 1 else "attempts"
    return f"{word}, {len(history.absent)} of which never came to the training" if history.absent else word


def _verdict(history: History) -> tuple[str, str]:
    """In a word, and the class of its color."""
    if history.damage:
        return "ledger damaged", "bad"
    if history.verified is None:
        return "not verified", "quiet"
    if history.is_verification_old:
        return "verified before it went on", "quiet"
    return ("proved", "good") if history.verified["same"] else ("not proved", "bad")


def _curves(history: History) -> Iterable[str]:
    from detrain.report import figures

    yield "<h2>Losses and metrics</h2>"
    if len(history.attempts) > 1:
        yield "<p class=quiet>Dotted lines: where an attempt resumed.</p>"
    loss = figures.losses(history)
    if loss is not None:
        yield "<p class=quiet>Every loss that gradients were computed of.</p>" + markup.figure(loss)
    yield from _metrics(history, history.printed, "Numbers with a name in what the script printed.")
    yield from _metrics(history, history.logged, "Numbers in the tables that the script wrote.")
    if loss is None and not history.printed and not history.logged:
        yield "<p>No loss is on record, and the script printed no number with a name.</p>"


def _metrics(history: History, found: list[Series], what: str) -> Iterable[str]:
    from detrain.report import figures

    moving = [one for one in found if len(set(one.values)) > 1]
    shown = moving[: figures.MOST_METRICS]
    if shown:
        yield f"<p class=quiet>{what}</p>"
        yield f"<div class=pair>{''.join(markup.figure(figures.metric(one, history), one.name) for one in shown)}</div>"
    left_out = [one.name for one in moving[figures.MOST_METRICS :]]
    if left_out:
        yield f"<p class=quiet>Also there: {escape(', '.join(left_out))}.</p>"
    constant = [f"{one.name} {one.values[0]:g}" for one in found if len(set(one.values)) == 1]
    if constant:
        yield f"<p class=quiet>The same throughout: {escape(', '.join(constant))}.</p>"


def _life(history: History) -> Iterable[str]:
    from detrain.report import figures

    found = figures.life(history)
    if found is None and not history.absent:
        return
    yield "<h2>Life</h2>"
    if found is not None:
        yield markup.figure(found)
    rows: dict[int, list[object]] = {
        number: [number, *[""] * 5, _absence(history, number)] for number in history.absent
    }
    for one, later in zip(history.attempts, [*history.attempts[1:], None], strict=True):
        again = max(0, one.end - later.begin) if later is not None else 0
        if later is None:
            how = "finished" if history.run["is_finished"] else "last seen"
        else:
            how = "the next attempt went on" if later.number == one.number + 1 else f"attempt {later.number} went on"
        lost = next((found for found in history.lost if found["attempt"] == one.number), None)
        if lost is not None:
            how = f"{lost['why']}, as rank {lost['rank']} saw it; {how}"
        rows[one.number] = [
            one.number,
            _time(one.points[0][0]),
            one.begin,
            _time(one.points[-1][0]),
            one.end,
            again,
            how,
        ]
    yield markup.table(
        ["attempt", "training began", "at batch", "last record", "at batch", "batches done again after it", "then"],
        [row for _, row in sorted(rows.items())],
    )


def _absence(history: History, number: int) -> str:
    is_running = history.run["held_by"] and number == history.run["attempts"]
    return "running, has not come to the training yet" if is_running else "ended before it came to the training"


def _checkpoints(history: History) -> Iterable[str]:
    from detrain.report import figures

    found = figures.checkpoints(history)
    if not found:
        return
    saved = [one for one in history.ledger.saved if "stall_s" in one]
    trained_s = sum(one.points[-1][0] - one.points[0][0] for one in history.attempts)
    stall_s = sum(one["stall_s"] for one in saved)
    yield "<h2>Checkpoints</h2>"
    share = f", {stall_s / trained_s:.2%} of the time between first and last record" if trained_s else ""
    yield f"<p>{len(saved)} were taken; the training waited {stall_s:.2f} s for them{share}.{_interval(saved)}</p>"
    within = [one["memory"] for one in saved if "memory" in one]
    if within:
        yield f"<p>{_memory(within[-1])}</p>"
        if within[-1].get("curve_bytes"):
            yield markup.figure(figures.memory(within[-1]), "memory over a step")
    yield f"<div class=pair>{''.join(markup.figure(one, name) for name, one in found.items())}</div>"
    yield markup.table(
        ["kept", "epoch", "batch", "bytes", "written", "damage"],
        [
            [one["file"], one.get("epoch", ""), one.get("batch", ""), f"{one['bytes']:,}", one["when"], one["damage"]]
            for one in history.run["checkpoints"]
        ],
    )


def _memory(use: dict[str, Any]) -> str:
    """Of the last attempt that had a budget, up to its last checkpoint."""
    budget = f" of a budget of {size_text(use['budget_bytes'])}" if use["budget_bytes"] else ""
    return (
        f"Memory: at most {size_text(use['peak_bytes'])}{budget}; {use['num_evictions']:,} pieces were evicted, and {use['num_again']:,} "
        f"operators run again for them, {use['again_s']:.1f} s.{_plans(use)}"
    )


def _plans(use: dict[str, Any]) -> str:
    if not use.get("num_planned"):
        return f" No plan: {escape(use['why'])}." if use.get("why") else ""
    left = f"; in {use['num_left']:,} it was left, last because {escape(use['why'])}" if use["num_left"] else ""
    return f" {use['num_planned']:,} steps followed a plan ({escape(use['planner'])}){left}."


def _interval(saved: list[dict[str, Any]]) -> str:
    chosen = [one["interval_s"] for one in saved if "interval_s" in one]
    if not chosen:
        return ""
    least, most = min(chosen), max(chosen)
    return f" <code>auto</code> chose one every {least:g} s" + (f" to {most:g} s." if most > least else ".")


def _proof(history: History) -> Iterable[str]:
    yield "<h2>Proof</h2>"
    word, color = _verdict(history)
    yield f"<p>This run is <span class={color}>{escape(word)}</span>."
    if history.damage:
        yield f" {escape(history.damage)}</p>"
        return
    if history.verified is None:
        yield f" <code>detrain verify {escape(str(history.path))}</code> does it again and compares.</p>"
    else:
        yield f" <code>detrain verify</code> did it again on {escape(history.verified['when'])}.</p>"
        rows = [
            [row["number"], row["start"], row["until"], row["num_compared"], f"{row['seconds']:.1f}", row["result"]]
            for row in history.verified["segments"]
        ]
        yield markup.table(["segment", "from", "to", "records compared", "seconds", "result"], rows)
    batches = history.ledger.batches
    covered = {path for leaves in history.ledger.lists.values() for path, _ in leaves}
    last = history.ledger.saved[-1] if history.ledger.saved else {}
    spent = f"; it took {last['ledger_s']:.2f} s of the last attempt" if "ledger_s" in last else ""
    yield (
        f"<p>The ledger holds {len(batches):,} records, with digests of the generators of random numbers, of the losses and of "
        f"{len(covered):,} leaves that the training changes{spent}.</p>"
    )


def _surroundings(history: History) -> Iterable[str]:
    yield "<h2>Surroundings</h2>"
    machine = history.record.machine
    found = {
        "script": history.record.script,
        "arguments": " ".join(history.record.arguments),
        "folder": history.record.folder,
        "seed": history.record.seed,
        "checkpoints": f"--every {history.record.every}",
        **history.facts,
        "processors": machine.processors if machine is not None else "",
        "environment variables that decide bits": ", ".join(
            f"{name}={value}" for name, value in (machine.variables if machine is not None else {}).items()
        )
        or "none was set",
    }
    yield markup.table(
        ["", ""], [[name, value if isinstance(value, str) else json.dumps(value)] for name, value in found.items()]
    )


def _time(seconds: float) -> str:
    from detrain.store.listing import when

    return when(seconds)
