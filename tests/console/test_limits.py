"""What `limits` says of names that nobody knows, and of a board without limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.nats_server import NatsServer

Here = Callable[..., Any]


def test_a_board_without_limits_says_what_can_be_limited(here: Here, nats_server: NatsServer) -> None:
    shown = here("limits", "show", "--nats", nats_server.url)
    assert (shown.code, shown.out) == (0, "")
    for part in ("role.ROLE", "coder, ", "tenant.NAME", "endpoint.NAME.requests", "--endpoint", "weight.NAME", "age"):
        assert part in shown.err, part


def test_a_role_that_nobody_knows_is_limited_with_a_warning(here: Here, nats_server: NatsServer) -> None:
    said = here("limits", "set", "role.codr=3", "role.coder=4", "--nats", nats_server.url)
    assert (said.code, said.out.splitlines()) == (0, ["role.coder=4", "role.codr=3"])
    (warning,) = said.err.splitlines()
    assert "there is no role 'codr'" in warning
    assert "integrator" in warning
    assert here("limits", "show", "--nats", nats_server.url).out.splitlines() == ["role.coder=4", "role.codr=3"]
