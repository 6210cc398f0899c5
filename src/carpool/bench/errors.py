"""What makes a measurement impossible. A request that fails is a record instead."""

from carpool.errors import CarpoolError


class BenchError(CarpoolError):
    """Nothing can be measured: the endpoint, an option or a file must be mended first."""
