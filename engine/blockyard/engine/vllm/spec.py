"""vLLM's OffloadingSpec for Blockyard: makes the scheduler's half and the rank's half.

Owns which client each half gets. Must never decide policy.
"""

import os
from functools import partial

from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig

from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.messages.attach import GroupShape
from blockyard.engine.scheduler_client import SchedulerClient
from blockyard.engine.vllm.adapters import AdapterBook
from blockyard.engine.vllm.epochs import Epochs
from blockyard.engine.vllm.manager import BlockyardManager
from blockyard.engine.vllm.metrics.tally import Tally, ToldTwice
from blockyard.engine.vllm.rank import BlockyardRank
from blockyard.engine.vllm.settings import SETUP_KEY
from blockyard.engine.vllm.setup import EngineSetup


class BlockyardOffloadingSpec(OffloadingSpec):
    """Made by vLLM in each process from the extra config that the connector prepared."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        setup = self.extra_config[SETUP_KEY]
        assert isinstance(setup, EngineSetup)
        self._setup = setup
        self._manager: BlockyardManager | None = None
        self._rank: BlockyardRank | None = None
        self._tally = Tally()

    def get_manager(self) -> OffloadingManager:
        """The scheduler process's half; starts attaching in the background."""
        if self._manager is None:
            setup = self._setup
            self._manager = BlockyardManager(
                Epochs(setup.world.digest, self.config.parallel.world_size, partial(os.urandom, DIGEST_BYTES)),
                setup.groups,
                setup.settings,
                self._scheduler_client(),
                AdapterBook(setup.instance),
                self._tally,
                private=bool(setup.world.private),
            )
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """This rank's half; starts attaching in the background."""
        if self._rank is None:
            self._rank = BlockyardRank(self._setup, self.config, kv_caches)
        return self._rank

    def _scheduler_client(self) -> SchedulerClient:
        shapes = [GroupShape(group.number, group.chunk_tokens, 0) for group in self._setup.groups]
        client = SchedulerClient(
            self._setup.settings.socket,
            self._setup.identity,
            shapes,
            self.config.parallel.world_size,
            report=ToldTwice(self._tally),
        )
        client.start()
        return client
