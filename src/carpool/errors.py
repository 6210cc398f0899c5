"""The base of every error that a user of Carpool can cause and mend."""


class CarpoolError(Exception):
    """Something is wrong outside the program; the message is one line that says what to do.

    The command line prints it to stderr as ``carpool: ...`` and exits with code 2.
    """
