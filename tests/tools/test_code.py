"""Code by its definitions: what is given replaces its namesake or is added, and nothing else changes."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.tools import ToolError
from kokuban.agents.tools.code import merged

OLD = '''"""Prices."""

import math

RATES = {"a": 1}
# kept


def total(x: int) -> int:
    """Add up."""
    return x


@cached
def other() -> None:
    pass
'''


def test_a_function_replaces_its_namesake_and_the_rest_stays() -> None:
    fresh = merged("p.py", OLD, "def total(x: int) -> int:\n    return x + 1\n")
    assert fresh == OLD.replace('    """Add up."""\n    return x\n', "    return x + 1\n")


def test_decorators_go_with_their_function() -> None:
    assert "@cached" not in merged("p.py", OLD, "def other() -> None:\n    return None\n")
    assert merged("p.py", OLD, "@new\ndef other() -> None:\n    pass\n") == OLD.replace("@cached", "@new")


def test_new_constants_and_imports_stand_above_the_functions_and_new_functions_at_the_end() -> None:
    code = 'import os\nimport math\n\nLIMIT = 3\nRATES = {"a": 2}\n\n\ndef fresh() -> int:\n    return LIMIT\n'
    fresh = merged("p.py", OLD, code)
    assert fresh.count("import math") == 1
    assert fresh.index("import os") < fresh.index("LIMIT = 3") < fresh.index("def total") < fresh.index("def fresh")
    assert 'RATES = {"a": 2}' in fresh
    assert 'RATES = {"a": 1}' not in fresh
    assert "# kept" in fresh
    ast.parse(fresh)


def test_a_whole_file_is_taken_and_an_empty_one_filled() -> None:
    assert merged("p.py", OLD, OLD) == OLD
    assert merged("p.py", "", "X = 1\n") == "X = 1\n"
    assert merged("p.py", '"""Only words."""\n', "X = 1\n") == '"""Only words."""\nX = 1\n'


@pytest.mark.parametrize("code", ["def broken(:\n", "return 'é\n", "x = (" * 500, "\0"])
def test_what_is_no_python_changes_nothing(code: str) -> None:
    with pytest.raises(ToolError, match="not valid Python"):
        merged("p.py", OLD, code)


NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


@given(NAMES, NAMES)
def test_every_name_of_both_is_defined_once(old: list[str], new: list[str]) -> None:
    def source(names: list[str], value: int) -> str:
        return "\n\n".join(f"def {n}():\n    return {value}" for n in names) + "\n"

    module = ast.parse(merged("p.py", source(old, 1), source(new, 2)))
    found = {n.name: ast.unparse(n.body[0]) for n in module.body if isinstance(n, ast.FunctionDef)}
    assert len(found) == len(module.body)
    assert found == {name: f"return {2 if name in new else 1}" for name in {*old, *new}}
