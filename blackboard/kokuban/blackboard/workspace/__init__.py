"""Workspaces as values: trees of files, their digests, packs, changes and merges. Only `_disk` touches a file system.

Invariant: a tree's digest depends on paths, contents and executable bits alone; the same digest is the same tree.
"""

from kokuban.blackboard.workspace._changes import Change, Mismatch, apply, changes, unified
from kokuban.blackboard.workspace._disk import check_out_path, checkout, scan, write_out
from kokuban.blackboard.workspace._merge import Conflict, Conflicts, Merged, merge
from kokuban.blackboard.workspace._pack import pack, unpack
from kokuban.blackboard.workspace._tree import (
    File,
    Tree,
    WorkspaceError,
    content_digest,
    is_text,
    lines_of,
    skipped,
    tree_digest,
)

__all__ = [
    "Change",
    "Conflict",
    "Conflicts",
    "File",
    "Merged",
    "Mismatch",
    "Tree",
    "WorkspaceError",
    "apply",
    "changes",
    "check_out_path",
    "checkout",
    "content_digest",
    "is_text",
    "lines_of",
    "merge",
    "pack",
    "scan",
    "skipped",
    "tree_digest",
    "unified",
    "unpack",
    "write_out",
]
