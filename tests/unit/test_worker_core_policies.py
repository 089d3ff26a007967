"""Eviction policies by name: what an operator may choose is what there is."""

from blockyard.common.config import WorkerConfig
from blockyard.common.config.kinds import Choice
from blockyard.common.config.settings import settings_of
from blockyard.worker.core.policies.registry import POLICIES


def test_the_setting_offers_exactly_the_policies_that_exist() -> None:
    (kind,) = [one.kind for one in settings_of(WorkerConfig) if one.name == "policy"]
    assert isinstance(kind, Choice)
    assert set(kind.words) == set(POLICIES)
