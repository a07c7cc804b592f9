"""What a call may do, decided in code before it is made: by who asks, which tool it is and with which values.

A policy is data (TOML) with a version. It is pure: the same question has the same answer. Whatever it cannot judge, it
does not allow.
"""

from kokuban.agents.policy._file import PolicyFile
from kokuban.agents.policy._judge import DEFAULT, Policy, Ruling, Who, default_policy
from kokuban.agents.policy._rules import InvalidPolicy, Outcome

__all__ = ["DEFAULT", "InvalidPolicy", "Outcome", "Policy", "PolicyFile", "Ruling", "Who", "default_policy"]
