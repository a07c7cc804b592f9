"""A model server for one step of a foreign program: on loopback, with a token of its own. Whatever the program asks is
reserved, journalled, metered and limited like a call of our own loop."""

from kokuban.agents.gateway._server import Gateway

__all__ = ["Gateway"]
