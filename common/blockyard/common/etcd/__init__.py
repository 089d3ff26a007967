"""Blockyard's etcd client: membership, election and settings go through it. Owns its public names."""

import os

# gRPC would write lines of its own to standard error at each handshake that fails, about one a second.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from blockyard.common.etcd.client import EtcdClient
from blockyard.common.etcd.endpoints import EtcdTls, parse_endpoints
from blockyard.common.etcd.errors import EtcdError, EtcdRefused, EtcdUnavailable, EtcdUncertain, LeaseGone
from blockyard.common.etcd.key_state import Held, KeyState, NotHeld, Waiting
from blockyard.common.etcd.lease import Lease
from blockyard.common.etcd.leased_key import LeasedKey
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.etcd.txn import Compare, Delete, Field, Get, Is, Put, Removed, TxnResult, Written
from blockyard.common.etcd.values import KeyValue, Listing
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync, ResyncReason, Watch, WatchEvent

__all__ = [
    "Compare",
    "Delete",
    "EtcdClient",
    "EtcdError",
    "EtcdRefused",
    "EtcdTls",
    "EtcdUnavailable",
    "EtcdUncertain",
    "Field",
    "Get",
    "Held",
    "Is",
    "KeyDeleted",
    "KeyPut",
    "KeyState",
    "KeyValue",
    "Lease",
    "LeaseGone",
    "LeaseTerms",
    "LeasedKey",
    "Listing",
    "NotHeld",
    "Put",
    "Removed",
    "Resync",
    "ResyncReason",
    "TxnResult",
    "Waiting",
    "Watch",
    "WatchEvent",
    "Written",
    "parse_endpoints",
]
