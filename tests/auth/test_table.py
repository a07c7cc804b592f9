"""The table in docs/credentials.md is what the code says. `python tests/auth/test_table.py` writes it again."""

from __future__ import annotations

from pathlib import Path

from kokuban.blackboard.wire._permissions import PLAIN, User, permissions
from kokuban.schemas.contracts import builtin_crew

PAGE = Path(__file__).parent.parent.parent / "docs" / "credentials.md"
BEGIN, END = "<!-- table: tests/auth/test_table.py -->\n", "<!-- end of table -->\n"


def table() -> str:
    """Who may write what that is stored, or that reaches others."""
    crew = builtin_crew()
    rows = ["| user | may write |\n", "|---|---|\n"]
    for user in (*PLAIN, User("approver", "ann"), *(User("role", role) for role in crew)):
        said = [
            f"`{subject}`"
            for subject in permissions(user, crew).publish
            if subject.startswith(("kb.", "kc.", "kl.", "$O"))
        ]
        rows.append(f"| `{user.id}` | {', '.join(said) or 'nothing'} |\n")
    return "".join(rows)


def test_the_page_shows_what_the_code_says() -> None:
    assert PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0] == table()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], "utf-8")
