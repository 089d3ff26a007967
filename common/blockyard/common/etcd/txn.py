"""The words of a transaction: comparisons, operations and their results, as frozen values. Owns their
translation to and from the wire; never performs a request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from blockyard.common.etcd.values import Listing, key_bytes, listing, range_end
from blockyard.common.etcd.wire import etcd_pb2 as pb


class Is(Enum):
    EQUAL = pb.Compare.EQUAL
    NOT_EQUAL = pb.Compare.NOT_EQUAL
    LESS = pb.Compare.LESS
    GREATER = pb.Compare.GREATER


class Field(Enum):
    """The number of a key that is compared; all are 0 for a key that does not exist."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Compare:
    key: str
    field: Field
    relation: Is
    number: int

    def message(self) -> pb.Compare:
        message = pb.Compare(key=key_bytes(self.key), result=self.relation.value)
        match self.field:
            case Field.CREATE_REVISION:
                message.target, message.create_revision = pb.Compare.CREATE, self.number
            case Field.MOD_REVISION:
                message.target, message.mod_revision = pb.Compare.MOD, self.number
            case Field.VERSION:
                message.target, message.version = pb.Compare.VERSION, self.number
        return message


@dataclass(frozen=True, slots=True)
class Get:
    key: str
    prefix: bool = False

    def message(self) -> pb.RangeRequest:
        return pb.RangeRequest(key=key_bytes(self.key), range_end=range_end(self.key, prefix=self.prefix))


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0

    def message(self) -> pb.PutRequest:
        return pb.PutRequest(key=key_bytes(self.key), value=self.value, lease=self.lease)


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    prefix: bool = False

    def message(self) -> pb.DeleteRangeRequest:
        return pb.DeleteRangeRequest(key=key_bytes(self.key), range_end=range_end(self.key, prefix=self.prefix))


@dataclass(frozen=True, slots=True)
class Written:
    revision: int


@dataclass(frozen=True, slots=True)
class Removed:
    revision: int
    count: int


Operation = Get | Put | Delete
Result = Listing | Written | Removed


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`results` are those of the branch that ran, one for each of its operations, in order."""

    succeeded: bool
    revision: int
    results: tuple[Result, ...]


def operation_message(operation: Operation) -> pb.RequestOp:
    match operation:
        case Get():
            return pb.RequestOp(request_range=operation.message())
        case Put():
            return pb.RequestOp(request_put=operation.message())
        case Delete():
            return pb.RequestOp(request_delete_range=operation.message())


def txn_result(message: pb.TxnResponse) -> TxnResult:
    revision = message.header.revision
    return TxnResult(message.succeeded, revision, tuple(_result(response, revision) for response in message.responses))


def _result(message: pb.ResponseOp, revision: int) -> Result:
    if message.HasField("response_range"):
        return listing(message.response_range, revision)
    if message.HasField("response_put"):
        return Written(revision)
    return Removed(revision, message.response_delete_range.deleted)
