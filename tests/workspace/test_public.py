"""The public face of `kokuban.blackboard.workspace`: growing or shrinking it is a decision."""

from __future__ import annotations

import kokuban.blackboard.workspace as part

PUBLIC = """
    Change Conflict Conflicts File MAX_BYTES MAX_FILES MAX_PACK_BYTES Merged Mismatch Tree WorkspaceError
    apply changes check_out_path check_tree checkout content_digest is_text lines_of merge pack scan skipped
    tree_digest unified unpack write_out
"""


def test_the_public_names_are_these_and_all_exist() -> None:
    assert sorted(part.__all__) == PUBLIC.split()
    assert all(hasattr(part, name) for name in part.__all__)
