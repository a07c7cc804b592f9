"""Credentials as files: an nkey's seed, and above it in comments whose it is. The server's side knows public keys only.

Other NATS clients read such a file as the seed file that it is (`nats --nkey FILE`).
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from kokuban.blackboard.redaction import conceal
from kokuban.blackboard.wire._names import PERSON
from kokuban.schemas import subjects

SUFFIX = ".nk"
ACCOUNTS = "accounts.conf"
CREDENTIALS = "credentials"
"""The folder of an embedded server's store that holds them."""
DEFAULT_TENANT = "default"
_MOST_BYTES = 65_536
_SEED = re.compile(r"SU[A-Z2-7]{56}")
_LINE = re.compile(r"#\s*(tenant|user):\s*([a-z0-9_-]{1,128})\s*")


class CredentialError(ValueError):
    """A credential that cannot be used; the message names the file and the way out, and holds nothing of its content.
    Nothing was written."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Who connects. `user` and `tenant` are '' for a seed that `kokuban auth` did not write."""

    path: Path
    seed: str = field(repr=False)
    user: str = ""
    tenant: str = ""

    @property
    def inbox(self) -> str:
        """Answers come below this prefix; no other user may hear them."""
        return f"_INBOX_{self.user}" if self.user else "_INBOX"

    @property
    def is_member(self) -> bool:
        """Whether this user's account holds no streams of its own: the supervisor's does, and a foreign one may."""
        return self.user not in ("", "supervisor")

    @property
    def person(self) -> str | None:
        """Whom it may speak for; None when for nobody."""
        if self.user.startswith("approver-"):
            return self.user.removeprefix("approver-")
        return PERSON if self.user in ("client", "admin") else None

    @property
    def public_key(self) -> str:
        """What the server knows of it."""
        import nkeys

        key: bytes = nkeys.from_seed(bytearray(self.seed.encode())).public_key
        return key.decode()

    def sign(self, nonce: str) -> str:
        """The answer to a server's challenge, in base64."""
        import base64

        import nkeys

        return base64.b64encode(nkeys.from_seed(bytearray(self.seed.encode())).sign(nonce.encode())).decode()


def load_credential(path: Path) -> Credential:
    """Read a credential's file. Raises `CredentialError`."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise CredentialError(f"credentials: {path} cannot be read: {error.strerror or error}") from error
    seed = _SEED.search(text)
    try:
        if seed is None:
            raise ValueError
        named = {found[1]: found[2] for line in text.splitlines() if (found := _LINE.fullmatch(line))}
        credential = Credential(path.absolute(), seed[0], named.get("user", ""), named.get("tenant", ""))
        conceal(f"of {path.name}", credential.seed)
        _check_sum(credential.seed)
    except ImportError as error:
        raise CredentialError(f"credentials: {error.name} is not installed; pip install nkeys") from error
    except Exception:  # the library's own say what a seed looks like, not which file; and no part of it may be shown
        raise CredentialError(
            f"credentials: {path} holds no user's seed (a line of 58 characters that starts with SU); "
            "`kokuban auth init` writes such files"
        ) from None
    return credential


def _check_sum(seed: str) -> None:
    import nkeys

    _, raw = nkeys.decode_seed(bytearray(seed.encode()))
    if nkeys.encode_seed(bytes(raw), nkeys.PREFIX_BYTE_USER).decode() != seed:
        raise ValueError


def make_credential(folder: Path, user: str, tenant: str) -> Credential:
    """Write a new secret for `user` to `folder`, which only its owner may enter. Raises `CredentialError`
    when there is one already: a secret is never replaced unasked."""
    import nkeys

    seed: str = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER).decode()
    path = folder / f"{user}{SUFFIX}"
    text = (
        "# A Kokuban credential. Whoever holds it may do what this user may: keep it secret.\n"
        f"# tenant: {subjects.token(tenant, 'tenant')}\n# user: {user}\n{seed}\n"
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise CredentialError(f"credentials: {path} is there already") from error
    return Credential(path.absolute(), seed, user, tenant)
