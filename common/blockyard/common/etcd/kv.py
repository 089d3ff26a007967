"""Reading and writing keys. Owns the requests of etcd's KV service and what a lost answer means for each;
never knows what the keys are for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from blockyard.common.etcd.backoff import backoffs
from blockyard.common.etcd.connection import DEFAULT_TIMEOUT_S, Connection
from blockyard.common.etcd.errors import EtcdRefused, EtcdUnavailable, EtcdUncertain
from blockyard.common.etcd.txn import (
    Compare,
    Delete,
    Field,
    Get,
    Is,
    Operation,
    Put,
    Removed,
    TxnResult,
    Written,
    operation_message,
    txn_result,
)
from blockyard.common.etcd.values import KeyValue, Listing, listing
from blockyard.common.etcd.wire import etcd_pb2 as pb
from blockyard.common.etcd.wire.methods import DELETE, PUT, RANGE, TXN


class Keys:
    """Reads are linearizable. A write whose answer was lost raises EtcdUncertain and is not sent again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, key: str, *, timeout_s: float | None = None) -> KeyValue | None:
        return (await self.list(key, prefix=False, timeout_s=timeout_s)).first

    async def list(self, key: str, *, prefix: bool = True, timeout_s: float | None = None) -> Listing:
        """All keys under a prefix (or one key alone), in order, and the revision at which they stood so."""
        response = await self._connection.call(RANGE, Get(key, prefix).message(), timeout_s=timeout_s)
        return listing(response, response.header.revision)

    async def put(self, key: str, value: bytes, *, lease: int = 0, timeout_s: float | None = None) -> Written:
        response = await self._connection.call(PUT, Put(key, value, lease).message(), timeout_s=timeout_s)
        return Written(response.header.revision)

    async def delete(self, key: str, *, prefix: bool = False, timeout_s: float | None = None) -> Removed:
        response = await self._connection.call(DELETE, Delete(key, prefix).message(), timeout_s=timeout_s)
        return Removed(response.header.revision, response.deleted)

    async def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        timeout_s: float | None = None,
    ) -> TxnResult:
        """Run `success` if every comparison holds, else `failure`; all at one revision."""
        request = pb.TxnRequest(
            compare=[item.message() for item in compare],
            success=[operation_message(item) for item in success],
            failure=[operation_message(item) for item in failure],
        )
        return txn_result(await self._connection.call(TXN, request, timeout_s=timeout_s))

    async def create_if_absent(
        self, key: str, value: bytes, *, lease: int = 0, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tuple[bool, KeyValue]:
        """Make the key unless it exists; return whether this call made it, and the key as it stands.

        A lost answer is settled here: after one, a key with our lease and our value is the one we made. So
        pass a lease of your own, or a value that nobody else would write.
        """
        deadline = time.monotonic() + timeout_s
        absent = Compare(key, Field.CREATE_REVISION, Is.EQUAL, 0)
        answer_lost = False
        waits = backoffs()
        while (left := deadline - time.monotonic()) > 0:
            try:
                result = await self.txn([absent], [Put(key, value, lease)], [Get(key)], timeout_s=left)
            except EtcdUncertain:
                answer_lost = True
                await asyncio.sleep(min(next(waits), left))
                continue
            except EtcdUnavailable:
                if answer_lost:
                    break
                raise
            if result.succeeded:
                revision = result.revision
                return True, KeyValue(key, value, revision, revision, 1, lease)
            current = _only(result)
            ours = answer_lost and current.lease == lease and current.value == value
            return ours, current
        raise EtcdUncertain(f"etcd key {key}: not known within {timeout_s:g} s whether it was made")


def _only(result: TxnResult) -> KeyValue:
    match result.results:
        case (Listing(kvs=(current,)),):
            return current
    raise EtcdRefused(f"etcd txn at revision {result.revision}: said that a key exists and did not return it")
