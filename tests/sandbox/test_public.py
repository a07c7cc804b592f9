"""The public face of `kokuban.agents.sandbox`: growing or shrinking it is a decision."""

from __future__ import annotations

import kokuban.agents.sandbox as part

PUBLIC = """
    DEFAULT_OUTPUT_CAP_BYTES Finished HeadTail SandboxError clip run stabilise
"""


def test_the_public_names_are_these_and_all_exist() -> None:
    assert sorted(part.__all__) == PUBLIC.split()
    assert all(hasattr(part, name) for name in part.__all__)
