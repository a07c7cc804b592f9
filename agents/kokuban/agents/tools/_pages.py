"""The text of a page that a stranger wrote, in time that grows with its length: html.parser takes half a minute for
40 kB of unfinished tags, and any codec's name may stand in a header."""

from __future__ import annotations

import html
import re

_CHARSET = re.compile(r"charset=[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_CODECS = re.compile(
    r"utf-?(?:8|16|32)(?:-?[bl]e)?|(?:us-)?ascii|iso-?8859-?\d{1,2}|latin-?\d{1,2}|(?:windows-|cp)\d{3,5}|koi8-[rtu]"
    r"|gbk|gb2312|gb18030|big5|shift_jis|euc[_-](?:jp|kr)|iso-2022-jp",
    re.IGNORECASE,
)
# Possessive: each opening bracket is looked at once, and no further than the next one.
_TAG = re.compile(
    r"""<(/?)([a-zA-Z][a-zA-Z0-9:-]*+)(?:(?:[^<>"']|"[^"<]*+"|'[^'<]*+')*+>|[^<>]*+>)""",
)
_BLOCKS = frozenset({"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "article"})
_SILENT = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "template", "noscript", "svg")}
_ENDLESS_NUMBER = re.compile(r"&#(?:[xX][0-9a-fA-F]{8,}|[0-9]{10,});?")


def text_of(body: bytes, kind: str) -> str:
    """The text of a body with this content type; bytes that are none in its charset become U+FFFD. Never raises."""
    named = _CHARSET.search(kind)
    codec = named[1] if named and _CODECS.fullmatch(named[1]) else "utf-8"
    try:
        text = body.decode(codec, "replace")
    except LookupError:  # such as cp99999
        text = body.decode("utf-8", "replace")
    return readable(text) if "html" in kind.lower() else text


def readable(page: str) -> str:
    """An HTML page as plain text: no tags, scripts, styles and comments, a line for each block."""
    parts: list[str] = []
    at = 0
    while (begin := page.find("<", at)) >= 0:
        parts.append(page[at:begin])
        at = _after(page, begin, parts)
    parts.append(page[at:])
    text = html.unescape(_ENDLESS_NUMBER.sub("\ufffd", "".join(parts)))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _after(page: str, begin: int, parts: list[str]) -> int:
    """Where the text goes on after the bracket at `begin`; what it says is added to `parts`."""
    if page.startswith("<!--", begin):
        return _past(page, "-->", begin + 4)
    if page.startswith(("<!", "<?"), begin):
        return _past(page, ">", begin)
    tag = _TAG.match(page, begin)
    if tag is None:
        parts.append("<")
        return begin + 1
    name = tag[2].lower()
    if name in _BLOCKS:
        parts.append("\n")
    if name in _SILENT and not tag[1]:
        end = _SILENT[name].search(page, tag.end())
        return end.start() if end else len(page)
    return tag.end()


def _past(page: str, mark: str, start: int) -> int:
    found = page.find(mark, start)
    return len(page) if found < 0 else found + len(mark)
