"""How talking to etcd can fail. Owns the typed errors; gRPC's status codes stay in `connection`."""

from blockyard.common.errors import BlockyardError


class EtcdError(BlockyardError):
    """Any failure of a request to etcd."""


class EtcdUnavailable(EtcdError):
    """No endpoint answered within the deadline. Trying again later may work."""


class EtcdUncertain(EtcdUnavailable):
    """The answer to a write was lost: it may or may not have been applied. Read before writing again."""


class EtcdRefused(EtcdError):
    """etcd answered no (permission, invalid request, full database). Trying again will not help by itself."""


class LeaseGone(EtcdRefused):
    """The lease expired or was revoked, and all keys under it went with it."""
