"""What an operator writes into kv_connector_extra_config is checked, one clear line a mistake."""

import pytest

from blockyard.common.errors import ConfigError
from blockyard.engine.vllm.settings import EngineSettings, parse


def test_nothing_given_is_the_default() -> None:
    assert parse({}) == EngineSettings()


def test_every_setting_is_read() -> None:
    settings = parse(
        {
            "socket": "/tmp/w.sock",
            "verify_host": "off",
            "salt": "team-a",
            "chunk_tokens": 512,
            "acquire_wait_ms": 2,
            "acquire_deadline_ms": 80,
            "allow_untested": True,
            "offload_prompt_only": True,
            "harmless_calls": ["memory_of"],
        }
    )
    assert settings == EngineSettings("/tmp/w.sock", "off", "team-a", 512, 0, 0.002, 0.080, True, True, ("memory_of",))


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"sokcet": "/tmp/x"}, "'sokcet'"),
        ({"socket": "relative"}, "absolute path"),
        ({"socket": "/" + "x" * 200}, "107 bytes"),
        ({"verify_host": "maybe"}, "off, sample or always"),
        ({"chunk_tokens": 0}, "from 1 to"),
        ({"chunk_tokens": True}, "from 1 to"),
        ({"acquire_wait_ms": "1"}, "from 0 to 100"),
        ({"acquire_deadline_ms": -1}, "from 1 to"),
        ({"allow_untested": "yes"}, "true or false"),
        ({"harmless_calls": "memory_of"}, "a list of names"),
        ({"harmless_calls": ["memory of"]}, "a list of names"),
        ({"salt": 7}, "a text"),
        ({"blocks_per_chunk": 1 << 20}, "from 0 to"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(extra: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(extra)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
