"""Whether a program keeps the rules of a role's worker: a real server, a scripted leader, and a proxy in between."""

from kokuban.console.conformance._checks import CHECKS, Check, Outcome, examine
from kokuban.console.conformance._folder import BadFolder, RoleFolder, read_folder
from kokuban.console.conformance._leader import Failed

__all__ = ["CHECKS", "BadFolder", "Check", "Failed", "Outcome", "RoleFolder", "examine", "read_folder"]
