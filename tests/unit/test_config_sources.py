"""Where a value may come from, which source wins, and how a wrong one is told."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from blockyard.common.config import LeaderConfig, SettingError, WorkerConfig
from blockyard.common.config.load import Resolution, resolve
from blockyard.common.config.units import GIB, MIB


def worker(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Resolution[WorkerConfig]:
    return resolve(WorkerConfig, "worker", flags or {}, file, environ or {})


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "blockyard.toml"


def source_of(resolution: Resolution[WorkerConfig], name: str) -> str:
    return next(item.source for item in resolution.settings if item.setting.name == name)


def test_defaults_make_a_worker_that_starts_alone() -> None:
    config = worker().build()
    assert config == WorkerConfig()
    assert (config.host_pool, config.etcd, config.socket_mode) == (GIB, (), 0o600)


def test_each_source_beats_the_next(toml: Path) -> None:
    toml.write_text('[worker]\nhost_pool = "128MiB"\n')
    variable = {"BLOCKYARD_WORKER_HOST_POOL": "256MiB"}
    flag = {"host_pool": "512MiB"}
    assert worker(flag, variable, toml).build().host_pool == 512 * MIB
    assert worker({"host_pool": None}, variable, toml).build().host_pool == 256 * MIB
    assert worker({}, {}, toml).build().host_pool == 128 * MIB
    assert source_of(worker(flag, variable, toml), "host_pool") == "flag --host-pool"
    assert source_of(worker({}, variable, toml), "host_pool") == "variable BLOCKYARD_WORKER_HOST_POOL"
    assert source_of(worker({}, {}, toml), "host_pool") == f"[worker] of {toml}"
    assert source_of(worker(), "host_pool") == "default"


def test_a_roles_own_section_beats_the_common_one(toml: Path) -> None:
    toml.write_text('[common]\ncluster = "shared"\nlog_level = "error"\n[worker]\ncluster = "own"\n')
    config = worker({}, {}, toml).build()
    assert (config.cluster, config.log_level) == ("own", "error")
    variables = {"BLOCKYARD_COMMON_CLUSTER": "shared", "BLOCKYARD_WORKER_CLUSTER": "own"}
    assert worker({}, variables).build().cluster == "own"
    assert worker({}, {"BLOCKYARD_COMMON_CLUSTER": "shared"}, toml).build().cluster == "shared"


def test_the_file_may_be_named_by_a_variable(toml: Path) -> None:
    toml.write_text('[worker]\npin_ttl = "5s"\n')
    assert worker({}, {"BLOCKYARD_CONFIG": str(toml)}).build().pin_ttl == 5.0


def test_other_variables_are_left_alone() -> None:
    others = {
        "BLOCKYARD_SOMETHING": "1",
        "PATH": "/bin",
        "BLOCKYARD_WORKER_PORT_9000_TCP_ADDR": "10.0.0.1",
        "BLOCKYARD_WORKER_SERVICE_HOST": "10.0.0.1",
        "BLOCKYARD_LEADER_PORT": "tcp://10.0.0.1:9000",
    }
    assert worker({}, others).build() == WorkerConfig()


@pytest.mark.parametrize(
    ("raw", "source"), [("abc", "variable"), ("-1GiB", "variable"), ("", "variable"), ("10GB", "variable")]
)
def test_a_wrong_value_names_thing_value_source_and_remedy(raw: str, source: str) -> None:
    with pytest.raises(SettingError) as caught:
        worker({}, {"BLOCKYARD_WORKER_HOST_POOL": raw})
    assert str(caught.value) == (
        f"host_pool = {raw!r} ({source} BLOCKYARD_WORKER_HOST_POOL): "
        "must be a size with a unit (B, KiB, MiB, GiB, TiB), 1MiB to 64TiB"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[worker]\nhost_pol = '1GiB'\n",
            "host_pol ([worker] of FILE): no such setting; did you mean host_pool?",
        ),
        ("[wroker]\n", "[wroker] (FILE): no such setting; did you mean [worker]?"),
        (
            "[leader]\nlisten_on = 'a:1'\n",
            "listen_on ([leader] of FILE): no such setting; did you mean listen?",
        ),
        ("host_pool = '1GiB'\n", "host_pool = '1GiB' (FILE): stands outside a table; right: under [worker]"),
        ("no_such = 1\n", "no_such = 1 (FILE): stands outside a table; right: under [common] or [leader] or [worker]"),
        ("worker = 3\n", "worker = 3 (FILE): must be a section, [worker]"),
        ("[worker]\nhost_pool = 5\n", "host_pool = 5 ([worker] of FILE): must be a size"),
        ("[worker]\nprefault = 'yes'\n", "prefault = 'yes' ([worker] of FILE): must be true or false"),
        (
            "[worker]\nsocket_mode = 0o600\n",
            "socket_mode = 384 ([worker] of FILE): must be octal permission bits",
        ),
        ("[worker\n", "config = FILE: is not TOML: "),
        ("[worker]\na = " + "[" * 9999, "config = FILE: is not TOML of ours: values lie too deep in one another"),
        ('[worker]\n"a\\nb" = 1\n', "'a\\nb' ([worker] of FILE): no such setting; "),
        ('["a\\nb"]\n', "'[a\\nb]' (FILE): no such setting; "),
        ('"a\\nb" = 1\n', "'a\\nb' = 1 (FILE): stands outside a table; "),
    ],
)
def test_a_wrong_file_is_told_in_one_line(toml: Path, text: str, told: str) -> None:
    toml.write_text(text)
    with pytest.raises(SettingError) as caught:
        worker({}, {}, toml)
    message = str(caught.value)
    assert message.replace(str(toml), "FILE").startswith(told)
    assert "\n" not in message


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(SettingError, match="config = /no/such: cannot be read: No such file"):
        worker({}, {}, Path("/no/such"))


def test_a_file_that_is_not_text_is_told(toml: Path) -> None:
    toml.write_bytes(b"\xff\xfe[worker]")
    with pytest.raises(SettingError, match="is not TOML"):
        worker({}, {}, toml)


def test_a_misspelt_variable_is_told_whichever_role_starts() -> None:
    with pytest.raises(SettingError, match=r"did you mean BLOCKYARD_LEADER_LISTEN\?"):
        worker({}, {"BLOCKYARD_LEADER_LISTN": "a:1"})


def test_a_variable_in_small_letters_is_not_taken_for_one_in_capitals() -> None:
    with pytest.raises(SettingError, match="no such setting"):
        worker({}, {"BLOCKYARD_WORKER_host_pool": "1GiB"})


def test_a_conflict_names_the_source_of_the_value() -> None:
    resolution = worker({}, {"BLOCKYARD_WORKER_SLAB_SIZE": "2GiB"})
    with pytest.raises(SettingError) as caught:
        resolution.build()
    assert str(caught.value) == (
        "slab_size = 2GiB (variable BLOCKYARD_WORKER_SLAB_SIZE): must not be larger than host_pool, 1GiB"
    )


def test_what_is_missing_is_told_as_not_set() -> None:
    with pytest.raises(SettingError) as caught:
        resolve(LeaderConfig, "leader", {}, None, {}).build()
    assert str(caught.value) == "etcd (not set): must be set for a leader, such as 127.0.0.1:2379"
