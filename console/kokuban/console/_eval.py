"""eval: how often a crew solves a suite's tasks, beside the same model alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kokuban.console._errors import INTERRUPTED
from kokuban.console._models import ModelChoice, choose, model_options, required
from kokuban.console._options import PATH, json_option
from kokuban.console._terminal import json_line, put, tell


@click.command(
    "eval",
    epilog="Example: kokuban eval evals/small.jsonl --baseline --repeat 3 --model openai:gpt-4.1-mini "
    "--results results.jsonl --gate 'pass>=0.6'",
)
@click.argument("suite", type=PATH)
@click.option("--repeat", type=click.IntRange(1, 100), default=1, show_default=True, help="Do every task N times.")
@click.option("--baseline", is_flag=True, help="Also one call of the same model, and the best of n at equal tokens.")
@click.option("--only", metavar="ID,…", help="These tasks only.")
@click.option(
    "--results", "results_file", type=PATH, metavar="FILE",
    help="Where results are kept, a line each; what is there already is not done again (default: nowhere).",
)  # fmt: skip
@click.option("--compare", type=PATH, metavar="FILE", help="Results of an earlier run: says which tasks changed.")
@click.option(
    "--gate", "gates", multiple=True, metavar="RULE",
    help="Exit with 1 unless it holds: pass>=0.6, single.pass>=0.2, or no-regression (with --compare).",
)  # fmt: skip
@click.option("--seconds", type=click.IntRange(1, 86_400), default=600, show_default=True, help="Deadline of a task.")
@model_options
@json_option
def evaluate(
    suite: Path, repeat: int, baseline: bool, only: str | None, results_file: Path | None, compare: Path | None,
    gates: tuple[str, ...], seconds: int, as_json: bool, model: tuple[str, ...], base_url: str | None,
    record: Path | None, native_tools: bool | None, endpoint: str | None, prices: tuple[str, ...], text_tools: bool,
) -> int:  # fmt: skip
    """Do the tasks of SUITE (JSON lines) and judge the results by checks that nobody who works on them sees.

    Exit code 0: done, and every --gate holds; 1: one does not; 130: interrupted.
    """
    import asyncio

    import msgspec

    from kokuban.console.evaluation import ARMS, InvalidSuite, Results, Stopped, changed, gates_of, load, summary, table

    if compare is not None and not compare.is_file():
        raise click.UsageError(f"compare: there is no file {compare}; name the results of an earlier run")
    try:
        tasks = load(suite, [name.strip() for name in only.split(",")] if only else ())
        rules = gates_of(gates)
        earlier = Results(compare).found.values() if compare else ()
        if results_file is not None:
            Results(results_file)  # whether it can be gone on with is said now
    except (InvalidSuite, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    if any(rule.least is None for rule in rules) and compare is None:
        raise click.UsageError("gate: no-regression needs --compare FILE")
    choice = required(choose(model, base_url, record, native_tools, endpoint, prices, text_tools))
    arms = ARMS if baseline else ARMS[:1]
    for rule in rules:
        if rule.arm not in arms:
            raise click.UsageError(
                f"gate: there is no arm {rule.arm}; there is {', '.join(arms)} (--baseline adds more)"
            )
    known = {task.id for task in tasks}
    try:
        results = asyncio.run(_evaluate(tasks, repeat, arms, results_file, choice, seconds))
    except Stopped:
        again = f"; the same command goes on behind what is in {results_file}" if results_file else ""
        tell(f"Interrupted{again}.")
        return INTERRUPTED
    mine = [r for r in results.found.values() if r.task in known and r.arm in arms and r.repeat < repeat]
    said = summary(mine)
    better, worse = changed(mine, earlier) if compare else ([], [])
    broken = [
        f"{rule.arm}.pass>={rule.least:g}" if rule.least is not None else "no-regression"
        for rule in rules
        if (worse if rule.least is None else said.get(rule.arm, {"rate": 0.0})["rate"] < rule.least)
    ]
    if as_json:
        put(json_line(msgspec.json.encode({"arms": said, "better": better, "worse": worse, "broken": broken})))
    else:
        for line in table(said):
            put(line)
        if compare:
            put(f"better: {', '.join(better) or 'none'}; worse: {', '.join(worse) or 'none'}")
    for text in broken:
        tell(f"gate: {text} does not hold")
    return 1 if broken else 0


async def _evaluate(
    tasks: list[Any], repeat: int, arms: tuple[str, ...], file: Path | None, choice: ModelChoice, seconds: int
) -> Any:
    import tempfile

    from kokuban.console.evaluation import Bench, Results

    await choice.validate()
    with tempfile.TemporaryDirectory(prefix="kokuban-eval-", ignore_cleanup_errors=True) as folder:
        results = Results(file if file is not None else Path(folder, "results.jsonl"))
        async with Bench.open(choice, folder=Path(folder, "store"), seconds=seconds) as bench:
            for n in range(repeat):
                for task in tasks:
                    for arm in arms:
                        if (task.id, n, arm) in results.found:
                            continue
                        crew = results.found.get((task.id, n, "crew"))
                        result = await bench.run(arm, task, n, crew.tokens if crew else 0)
                        results.add(result)
                        word = "passed" if result.passed else "failed"
                        tell(f"{task.id} {arm} {word}: {result.tokens} tokens, {result.seconds:.1f} s; {result.ended}")
                        sys.stderr.flush()
    return results
