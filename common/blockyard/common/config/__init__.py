"""Configuration of leaders and workers: one declaration a setting, one way to read them all."""

from blockyard.common.config.address import Address, parse_address
from blockyard.common.config.disk import DiskSpec, Floor, require_room
from blockyard.common.config.leader import LeaderConfig
from blockyard.common.config.load import load_leader, load_worker
from blockyard.common.config.memory import MemoryLimit, require_memory, system_memory_limits
from blockyard.common.config.settings import SettingError
from blockyard.common.config.worker import WorkerConfig

__all__ = [
    "Address",
    "DiskSpec",
    "Floor",
    "LeaderConfig",
    "MemoryLimit",
    "SettingError",
    "WorkerConfig",
    "load_leader",
    "load_worker",
    "parse_address",
    "require_memory",
    "require_room",
    "system_memory_limits",
]
