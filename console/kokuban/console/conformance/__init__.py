"""Whether a program keeps the rules of a role's worker: a real server, a scripted leader, and a proxy in between."""

from kokuban.console.conformance._checks import CHECKS, Check, Failed, Outcome, examine
from kokuban.console.conformance._folder import BadFolder, RoleFolder, read_folder

__all__ = ["CHECKS", "BadFolder", "Check", "Failed", "Outcome", "RoleFolder", "examine", "read_folder"]
