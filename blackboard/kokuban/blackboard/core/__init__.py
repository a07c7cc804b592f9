"""The pure core: what the records on the board mean. No NATS, no clock, no randomness, no environment."""

from kokuban.blackboard.core.admission import Candidate, reasons_against
from kokuban.blackboard.core.dag import order_of, problems_of_plan
from kokuban.blackboard.core.fold import Applied, Stored, fold
from kokuban.blackboard.core.ledger import Ledger
from kokuban.blackboard.core.lineage import ancestors, descendants
from kokuban.blackboard.core.state import Artifact, Board, GateState, Step, Task

__all__ = [
    "Applied", "Artifact", "Board", "Candidate", "GateState", "Ledger", "Step", "Stored", "Task", "ancestors",
    "descendants", "fold", "order_of", "problems_of_plan", "reasons_against",
]  # fmt: skip
