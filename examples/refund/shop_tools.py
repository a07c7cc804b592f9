"""The shop's two tools. Both talk to its till (till.py), with a credential that no model ever sees."""

from __future__ import annotations

import os
from typing import Annotated, Any

import httpx
from pydantic import Field

from kokuban.agents.tools import ToolContext, ToolError, tool

TILL = os.environ.get("TILL_URL", "http://127.0.0.1:8900")
Order = Annotated[str, Field(description="The order's number, such as A-17.", max_length=40)]


async def _ask(context: ToolContext, method: str, path: str, **sent: Any) -> Any:
    headers = {"Authorization": f"Bearer {context.secrets['TILL_TOKEN']}", "Idempotency-Key": context.key}
    try:
        async with httpx.AsyncClient(base_url=TILL, headers=headers, timeout=5, trust_env=False) as till:
            answer = await till.request(method, path, **sent)
    except httpx.ConnectError as error:
        raise ToolError("the till cannot be reached now; nothing was done", transient=True) from error
    if answer.status_code in (429, 503):
        raise ToolError("the till is busy", transient=True)
    if answer.status_code in (401, 403):
        raise ToolError("the till refuses this worker", terminal=True)
    if answer.status_code == 404:
        raise ToolError("there is no such order; check the number")
    answer.raise_for_status()
    return answer.json()


@tool(tier="read", effect="read", secrets=("TILL_TOKEN",))
async def lookup_order(context: ToolContext, order: Order) -> Any:
    """Look an order up. Returns its customer and what it cost, in euros, as JSON. Not for refunds that were made."""
    return await _ask(context, "GET", f"/orders/{order}")


@tool(tier="write", effect="keyed", secrets=("TILL_TOKEN",))
async def issue_refund(
    context: ToolContext,
    order: Order,
    amount: Annotated[float, Field(gt=0, description="Euros to give back.")],
) -> Any:
    """Give money back for an order. Returns what was paid, in euros, as JSON. Not for orders that cost less."""
    return await _ask(context, "POST", "/refunds", json={"order": order, "amount": amount})
