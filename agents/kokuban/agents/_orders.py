"""Reading work orders, and telling whether they are for a worker with this contract."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog

from kokuban.agents._owner import Assignment
from kokuban.blackboard.clock import Clock
from kokuban.blackboard.wire import Bus, BusError, Delivery
from kokuban.schemas import BadRecord, RegisteredRole, WorkOrder, open_record, subjects
from kokuban.schemas.contracts import Contract, InvalidContract, parse_contract

log = structlog.get_logger("kokuban.worker")


def read_order(delivery: Delivery, worker: str, *, clock: Clock, policy: str | None) -> Assignment | None:
    """The order that was delivered, None for what cannot be read or says something else than its subject. `policy` is
    what the worker goes by: see `Assignment`."""
    address = subjects.parse(delivery.stored.subject)
    try:
        record = open_record(delivery.stored.data)
        order = msgspec.json.decode(record.body, type=WorkOrder)
    except (BadRecord, msgspec.ValidationError) as error:
        log.warning("order is not readable", seq=delivery.stored.seq, error=str(error)[:200])
        return None
    if address is None or (record.task, record.step, record.role) != (address.task, address.step, address.role):
        log.warning("order contradicts its subject", seq=delivery.stored.seq)
        return None
    return Assignment(
        address.task, address.step, address.role, record.attempt, delivery.stored.seq, order, worker,
        record.principal, record.parent, record.trace, clock, policy,
    )  # fmt: skip


def is_newer(delivery: Delivery) -> bool:
    """Whether a release to come wrote this: it is for a worker of that release."""
    try:
        open_record(delivery.stored.data)
    except BadRecord as error:
        return error.newer
    return False


def why_unfit(contract: Contract, assignment: Assignment) -> str:
    """Which field of the order is not for a worker with this contract, and how; '' when it fits. The leader may go by
    another version of the contract: then the order is for whoever has that one."""
    order = assignment.order
    if assignment.role != contract.role:
        return f"role: {assignment.role} is ordered, this worker is a {contract.role}"
    extra = [kind for kind in order.produces if kind not in contract.produces]
    if extra:
        return f"produces: {', '.join(extra)} is ordered, this contract allows {', '.join(contract.produces)}"
    unknown = [kind for kind in dict.fromkeys(ref.kind for ref in order.inputs) if kind not in contract.consumes]
    if unknown:
        allowed = ", ".join(contract.consumes) or "none"
        return f"inputs: {', '.join(unknown)} is given, this contract takes {allowed}"
    return ""


async def differences(bus: Bus, contract: Contract) -> dict[str, Any]:
    """The fields in which the board's registered contract of this role is another, with what it says there; none when
    none is registered, or it cannot be read."""
    try:
        stored = await bus.last(subjects.contract(contract.role), timeout=1.0)
        if stored is None:
            return {}
        body = msgspec.json.decode(open_record(stored.data).body, type=RegisteredRole)
        other = parse_contract(body.contract, "the board's contract").model_dump()
    except (BusError, BadRecord, InvalidContract, msgspec.ValidationError) as error:
        log.debug("registered contract not read", error=str(error)[:200], role=contract.role)
        return {}
    mine = contract.model_dump()
    return {field: other[field] for field in mine if other[field] != mine[field]}
