"""etcd's methods by path, each with its answer's type. Owns the facts about a method that its caller must not
get wrong: whether it streams, and whether sending it twice is harmless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from blockyard.common.etcd.wire import etcd_pb2 as pb

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """`replay_safe`: a second sending after a lost answer changes nothing that matters."""

    path: str
    request: type[Request]
    response: type[Response]
    replay_safe: bool
    streams: bool = False

    def encode(self, request: Request) -> bytes:
        return self.request.SerializeToString(request)

    def decode(self, data: bytes) -> Response:
        return self.response.FromString(data)


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse, replay_safe=True)
PUT = Method("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse, replay_safe=False)
DELETE = Method("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse, replay_safe=False)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse, replay_safe=False)
# A grant whose answer was lost leaves a lease that nobody renews: it expires by itself.
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse, replay_safe=True)
LEASE_REVOKE = Method(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse, replay_safe=True
)
LEASE_KEEP_ALIVE = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    pb.LeaseKeepAliveRequest,
    pb.LeaseKeepAliveResponse,
    replay_safe=True,
    streams=True,
)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse, replay_safe=True, streams=True)
