"""A tree as one deterministic, compressed run of bytes, and back, within bounds."""

from __future__ import annotations

import zlib

import msgspec

from kokuban.blackboard.workspace._tree import MAX_BYTES, MAX_FILES, File, Tree, WorkspaceError, check_tree

MAX_PACK_BYTES = MAX_BYTES + 8 * 2**20
"""Most bytes a pack may decode to by default: a full workspace and its listing (58 MiB)."""

_MAGIC = b"KBW1"


def pack(tree: Tree) -> bytes:
    """The tree as bytes: `KBW1`, then one zlib stream of a JSON line `[[path, size, executable], …]` sorted by path and
    the contents in that order. The same tree gives the same bytes (for one zlib); `tree_digest` is its identity."""
    check_tree(tree)
    paths = sorted(tree)
    listing = [(path, len(tree[path].content), tree[path].executable) for path in paths]
    packer = zlib.compressobj(6)
    parts = [_MAGIC, packer.compress(msgspec.json.encode(listing) + b"\n")]
    parts += [packer.compress(tree[path].content) for path in paths]
    parts.append(packer.flush())
    return b"".join(parts)


def unpack(data: bytes, *, max_bytes: int = MAX_PACK_BYTES, max_files: int = MAX_FILES) -> Tree:
    """The tree in a pack. Never decodes more than `max_bytes`, however small the pack is. Raises `WorkspaceError` for
    anything that `pack` cannot have made: cut, too large, with paths that leave the workspace or come twice."""
    if not data.startswith(_MAGIC):
        raise WorkspaceError("this is not a packed workspace (its first bytes are wrong)")
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(memoryview(data)[len(_MAGIC) :], max_bytes + 1)
    except zlib.error as error:
        raise WorkspaceError("the packed workspace is damaged: it cannot be decompressed") from error
    if len(plain) > max_bytes:
        raise WorkspaceError(f"the packed workspace is larger than {max_bytes:,} bytes when decompressed; refused")
    if not unpacker.eof or unpacker.unused_data:
        raise WorkspaceError("the packed workspace is damaged: it is cut short, or something follows its end")
    end = plain.find(b"\n")
    try:
        listing = msgspec.json.decode(plain[: max(end, 0)], type=list[tuple[str, int, bool]])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WorkspaceError("the packed workspace is damaged: its listing cannot be read") from error
    if len(listing) > max_files:
        raise WorkspaceError(f"the packed workspace holds {len(listing):,} files; at most {max_files:,} are allowed")

    tree: dict[str, File] = {}
    at = end + 1
    for path, size, executable in listing:
        if path in tree:
            raise WorkspaceError(f"the packed workspace holds {path!r} twice")
        if size < 0 or at + size > len(plain):
            raise WorkspaceError(f"the packed workspace is damaged: the content of {path!r} is missing")
        tree[path] = File(plain[at : at + size], executable)
        at += size
    if at != len(plain):
        raise WorkspaceError("the packed workspace is damaged: it holds more content than its listing names")
    check_tree(tree)
    return dict(sorted(tree.items()))
