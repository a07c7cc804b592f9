"""The agents: a bounded loop, tools, models, and the worker that runs a role's steps as their owner."""

from kokuban.agents._output import Output
from kokuban.agents._work import Role, StepFailed, Work
from kokuban.agents.worker import Worker

__all__ = ["Output", "Role", "StepFailed", "Work", "Worker"]
