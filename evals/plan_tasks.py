"""Plans with constraints: a list in an order, or who does what. The agents may check the form and one of the rules."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

# items, rules in words with what checks them (a, b, c … are positions by name)
_ORDERS: list[tuple[str, list[str], list[tuple[str, str]]]] = [
    ("jobs of a printer", ["cover", "index", "pages", "binding"], [("binding comes last", "at['binding'] == 3"), ("pages come before the index", "at['pages'] < at['index']"), ("the cover comes first", "at['cover'] == 0")]),
    ("steps of a recipe", ["mix", "bake", "weigh", "cool", "eat"], [("weigh first", "at['weigh'] == 0"), ("mix before bake", "at['mix'] < at['bake']"), ("cool directly after bake", "at['cool'] == at['bake'] + 1"), ("eat last", "at['eat'] == 4")]),
    ("stops of a bus", ["school", "market", "station", "park"], [("start at the station", "at['station'] == 0"), ("the market before the park", "at['market'] < at['park']"), ("end at the school", "at['school'] == 3")]),
    ("talks of a morning", ["opening", "bees", "trees", "seas"], [("the opening first", "at['opening'] == 0"), ("seas before bees", "at['seas'] < at['bees']"), ("trees last", "at['trees'] == 3")]),
    ("tasks of a move", ["pack", "rent-van", "load", "drive", "unload"], [("load after pack", "at['load'] > at['pack']"), ("load after rent-van", "at['load'] > at['rent-van']"), ("drive after load", "at['drive'] > at['load']"), ("unload last", "at['unload'] == 4")]),
    ("courses of a dinner", ["soup", "cheese", "fish", "cake"], [("soup first", "at['soup'] == 0"), ("cake last", "at['cake'] == 3"), ("fish before cheese", "at['fish'] < at['cheese']")]),
    ("chapters", ["start", "middle", "turn", "end"], [("start first", "at['start'] == 0"), ("end last", "at['end'] == 3"), ("turn after middle", "at['turn'] > at['middle']")]),
    ("checks of a plane", ["fuel", "doors", "engine", "radio"], [("doors last", "at['doors'] == 3"), ("radio before engine", "at['radio'] < at['engine']"), ("fuel directly before doors", "at['fuel'] == 2")]),
]  # fmt: skip
# people, work with hours, rules
_SHARES: list[tuple[list[str], dict[str, int], int, list[tuple[str, str]]]] = [
    (["ann", "bob"], {"paint": 4, "sand": 3, "clean": 2}, 6, [("bob does not paint", "who['paint'] != 'bob'")]),
    (["ann", "bob"], {"cook": 3, "shop": 2, "wash": 2, "sweep": 1}, 5, [("ann cooks", "who['cook'] == 'ann'"), ("bob shops", "who['shop'] == 'bob'")]),
    (["eva", "kim"], {"read": 5, "write": 4, "draw": 1}, 6, [("kim draws", "who['draw'] == 'kim'")]),
    (["joe", "liz"], {"dig": 3, "plant": 3, "water": 3}, 6, [("liz waters", "who['water'] == 'liz'"), ("joe digs", "who['dig'] == 'joe'")]),
    (["ann", "bob", "cay"], {"north": 2, "south": 2, "west": 2}, 2, [("cay goes north", "who['north'] == 'cay'"), ("bob does not go west", "who['west'] != 'bob'")]),
    (["max", "pia"], {"piano": 4, "drums": 2, "flute": 2}, 4, [("pia plays the drums", "who['drums'] == 'pia'")]),
    (["sam", "tim"], {"door": 1, "roof": 5, "wall": 4}, 6, [("sam makes the roof", "who['roof'] == 'sam'")]),
]  # fmt: skip


def tasks() -> Iterator[dict[str, Any]]:
    for n, (what, items, rules) in enumerate(_ORDERS, 1):
        said = "; ".join(rule for rule, _ in rules)
        form = f"import json\n\nplan = json.load(open('plans/plan.json'))\nassert sorted(plan) == {sorted(items)!r}, 'each name once'\nat = {{name: i for i, name in enumerate(plan)}}\n"
        answers = [
            list(p)
            for p in itertools.permutations(items)
            if all(eval(c, {"at": {x: i for i, x in enumerate(p)}}) for _, c in rules)
        ]
        yield _task(
            f"order-{n:02}",
            f"Put the {what} in an order: {', '.join(items)}. Rules: {said}. Write plans/plan.json: a JSON list of the names.",
            form,
            rules,
            answers[0],
        )
    for n, (people, work, most, rules) in enumerate(_SHARES, 1):
        said = "; ".join([f"nobody has more than {most} hours", *(rule for rule, _ in rules)])
        hours = ", ".join(f"{name} ({h} h)" for name, h in work.items())
        form = (
            f"import json\n\nwho = json.load(open('plans/plan.json'))\nwork = {work!r}\nassert sorted(who) == {sorted(work)!r}, 'each work once'\n"
            f"assert set(who.values()) <= set({sorted(people)!r}), 'only these people'\n"
        )
        limit = (
            f"nobody has more than {most} hours",
            f"all(sum(work[w] for w in work if who[w] == p) <= {most} for p in {people!r})",
        )
        answers = [
            dict(zip(work, given, strict=True)) for given in itertools.product(people, repeat=len(work))
            if all(eval(c, {"who": dict(zip(work, given, strict=True)), "work": work}) for _, c in [limit, *rules])
        ]  # fmt: skip
        yield _task(
            f"share-{n:02}",
            f"Share out this work among {', '.join(people)}: {hours}. Rules: {said}. Write plans/plan.json: a JSON object from each work to who does it.",
            form,
            [*rules, limit],
            answers[0],
        )


def _task(name: str, goal: str, form: str, rules: list[tuple[str, str]], answer: Any) -> dict[str, Any]:
    shown = form + f"assert {rules[0][1]}, {rules[0][0]!r}\n"
    hidden = form + "".join(f"assert {check}, {rule!r}\n" for rule, check in rules)
    return {
        "id": f"plan-{name}", "kind": "plan", "goal": goal, "writes": "plans/plan.json",
        "files": {"check_plan.py": shown, "plans/plan.json": "[]\n"}, "checks": ["python3 check_plan.py"],
        "hidden": {"files": {"check_plan.py": shown, "hidden_check.py": hidden}, "checks": ["python3 hidden_check.py"]},
        "solution": json.dumps(answer),
    }  # fmt: skip
