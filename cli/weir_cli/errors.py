"""Errors of the command line, each with its exit code."""


class CommandError(Exception):
    """One line for the user, one exit code for programs. 1: it failed."""

    code = 1


class InvalidInput(CommandError):
    """A file, an option or a document is wrong; the line names place and field."""

    code = 2


class NotFound(CommandError):
    code = 3


class Conflict(CommandError):
    """Another user changed it first."""

    code = 4


class Unreachable(CommandError):
    """The server does not answer; the line says which and how to name another."""

    code = 5


class Refused(CommandError):
    """The server wants a token, or one that may do more."""

    code = 6


EXIT_CODES = """Exit codes: 0 done; 1 failed; 2 invalid input (the line names file and field); 3 not found; 4 changed by another user;
5 the server does not answer; 6 not allowed."""
