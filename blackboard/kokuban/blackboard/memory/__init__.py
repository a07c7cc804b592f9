"""Long-term memory on the board: proposed by anybody of the team, counted when a person or a verifier approved it, gone
when it expired or was forgotten. Every path names its tenant; nothing reads two."""

from __future__ import annotations

from kokuban.blackboard.memory._embeddings import Embeddings, NoEmbeddings
from kokuban.blackboard.memory._episodes import episode
from kokuban.blackboard.memory._fold import Memory, folded
from kokuban.blackboard.memory._forgetting import Forgetting, forgotten_deleted
from kokuban.blackboard.memory._memories import ANYBODY, EVERYTHING, Access, InvalidMemory, Memories, NoMemory
from kokuban.blackboard.memory._shelf import Shelf

__all__ = [
    "ANYBODY", "EVERYTHING", "Access", "Embeddings", "Forgetting", "InvalidMemory", "Memories", "Memory",
    "NoEmbeddings", "NoMemory", "Shelf", "episode", "folded", "forgotten_deleted",
]  # fmt: skip
