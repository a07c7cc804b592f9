"""What a role's folder holds: its contract, the kinds it needs, and samples of what it consumes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kokuban.blackboard.core.registry import problems_of_kind, problems_of_role
from kokuban.blackboard.workspace import Tree, scan
from kokuban.schemas import KINDS, RegisteredKind, RegisteredRole
from kokuban.schemas.contracts import Contract, InvalidContract, builtin_crew, parse_contract
from kokuban.schemas.kinds import problems

MAX_FILE_BYTES = 900_000


class BadFolder(ValueError):
    """The folder cannot be used; the message names the file and what is expected. Nothing was started."""


@dataclass(frozen=True, slots=True)
class RoleFolder:
    """`kinds` are the registered ones (kind: schema), `samples` one artifact of each kind that the role consumes (kind:
    JSON), `workspace` and `sources` what a task for it is about. `text` is the contract, '' for a built-in role."""

    contract: Contract
    text: str
    kinds: dict[str, bytes]
    samples: dict[str, bytes]
    workspace: Tree
    sources: Tree


def read_folder(folder: Path, role: str) -> RoleFolder:
    """Read `ROLE.toml`, `kinds/*.json`, `samples/KIND.json`, `samples/workspace/`, `samples/sources/` below `folder`.
    Raises `BadFolder`, `InvalidContract`."""
    import msgspec

    kinds: dict[str, dict[int, bytes]] = {}
    for path in sorted(folder.glob("kinds/*.json")):
        try:
            schema = msgspec.json.format(_read(path), indent=-1)
        except (ValueError, RecursionError) as error:
            raise BadFolder(f"{path}: not JSON: {error}") from error
        body = RegisteredKind(path.stem, 1, msgspec.Raw(schema))
        if found := problems_of_kind(kinds, body):
            raise BadFolder(f"{path}: {'; '.join(found)}")
        kinds[path.stem] = {1: schema}
    contract, text = _contract(folder, role, kinds)
    samples = {}
    for kind in dict.fromkeys((*contract.consumes, *contract.triggers)):
        if kind != "task":
            samples[kind] = _sample(folder / "samples" / f"{kind}.json", role, kind, kinds.get(kind, {}).get(1))
    workspace, sources = folder / "samples" / "workspace", folder / "samples" / "sources"
    if "sources" in contract.requires and not sources.is_dir():
        raise BadFolder(f"{sources}: there is no such folder, and {role} requires documents")
    return RoleFolder(
        contract, text, {kind: versions[1] for kind, versions in kinds.items()}, samples,
        scan(workspace) if workspace.is_dir() else {}, scan(sources) if sources.is_dir() else {},
    )  # fmt: skip


def _contract(folder: Path, role: str, kinds: dict[str, dict[int, bytes]]) -> tuple[Contract, str]:
    if role in builtin_crew():
        return builtin_crew()[role], ""
    path = folder / f"{role}.toml"
    if not path.is_file():
        raise BadFolder(f"{path}: there is no contract for {role!r}; name its folder with --folder")
    text = _read(path).decode("utf-8", "replace")
    contract = parse_contract(text, str(path), tuple(kinds))
    if contract.role != role:
        raise InvalidContract(f"{path}: role: it says {contract.role!r}, the file's name {role!r}")
    if found := problems_of_role({}, kinds, RegisteredRole(role, text)):
        raise InvalidContract(f"{path}: {'; '.join(found)}")
    return contract, text


def _sample(path: Path, role: str, kind: str, schema: bytes | None) -> bytes:
    import msgspec

    if not path.is_file():
        raise BadFolder(f"{path}: there is no such file; {role} consumes {kind}, so give a sample of it")
    if schema is None and kind not in KINDS:
        raise BadFolder(f"{path}: {kind!r} is no built-in kind and has no schema in kinds/")
    data = _read(path)
    if found := problems(kind, data, schema=schema):
        raise BadFolder(f"{path}: {'; '.join(found)}")
    return msgspec.json.format(data, indent=-1)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if len(data) > MAX_FILE_BYTES:
        raise BadFolder(f"{path}: {len(data)} bytes; at most {MAX_FILE_BYTES}")
    return data
