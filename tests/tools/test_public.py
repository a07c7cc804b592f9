"""The public face of `kokuban.agents.tools`: growing or shrinking it is a decision."""

from __future__ import annotations

import kokuban.agents.tools as part

PUBLIC = """
    Arguments BUILT_IN_TOOLS CheckRules CheckRun DELETE_FILE EDIT_FILE Invalid LIST_FILES Observation Passage
    READ_FILE RUN_CHECKS Registry SEARCH_FILES SEARCH_SOURCES Tool ToolContext ToolError WRITE_FILE canonical
    execute passages protected rank run_checks_on weakened with_checks_from
"""


def test_the_public_names_are_these_and_all_exist() -> None:
    assert sorted(part.__all__) == PUBLIC.split()
    assert all(hasattr(part, name) for name in part.__all__)
