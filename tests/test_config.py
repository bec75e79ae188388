"""The settings table: values from the environment, refusals that help, secrets that stay secret, the documentation made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenmq import config
from queenmq.errors import SetupError

TOP = Path(__file__).parent.parent
KEY = "ab" * 32


def test_the_documentation_is_what_the_table_makes() -> None:
    assert (TOP / "docs" / "configuration.md").read_text() == config.markdown()


def test_every_variable_of_the_contract_is_in_the_table() -> None:
    names = {row.name for row in config.listing(config.load({}))}
    for group in (
        "QUEENMQ_HOME QUEEN_DATABASE_URL PG_HOST PG_PORT PG_DB PG_USER PG_PASSWORD PORT HOST NUM_WORKERS DB_POOL_SIZE LOG_LEVEL",
        "DEFAULT_SUBSCRIPTION_MODE RETENTION_INTERVAL EVICTION_INTERVAL QUEEN_ENCRYPTION_KEY QUEEN_ENCRYPTION_KEYS QUEEN_CORS_ORIGINS",
        "FILE_BUFFER_DIR FILE_BUFFER_MAX_MB QUEEN_MAX_BODY_MB QUEEN_MAX_MESSAGE_KB QUEEN_SERVER_ID QUEEN_ADVERTISED_URL",
        "QUEEN_SYNC_ENABLED QUEEN_SYNC_SECRET QUEEN_SYNC_SECRET_PREVIOUS QUEEN_SYNC_HEARTBEAT_MS QUEEN_SYNC_DEAD_THRESHOLD_MS",
        "QUEEN_SYNC_RECV_BUFFER_MB QUEEN_SYNC_CACHE_SHARDS QUEEN_CACHE_PARTITION_MAX QUEEN_CACHE_PARTITION_TTL_MS QUEEN_UDP_PEERS",
        "QUEEN_CACHE_REFRESH_INTERVAL_MS POP_WAIT_BASE_INTERVAL_MS POP_WAIT_MAX_INTERVAL_MS POP_WAIT_BACKOFF_THRESHOLD",
        "POP_WAIT_BACKOFF_MULTIPLIER QUEEN_COORDINATOR_ENABLED QUEEN_COORDINATOR_FORWARD_THRESHOLD QUEEN_COORDINATOR_TIMEOUT_MS",
        "QUEEN_AFFINITY_TTL_MS QUEEN_AFFINITY_MIGRATE_THRESHOLD QUEEN_AFFINITY_BREAK_THRESHOLD QUEEN_AFFINITY_MIGRATE_MIN_IMPROVEMENT",
        "QUEEN_QUEUE_AFFINITY_THRESHOLD",
    ):
        assert set(group.split()) <= names


def test_a_variable_without_meaning_is_accepted_and_said_to_have_none() -> None:
    rows = {row.name: row for row in config.listing(config.load({"QUEEN_SYNC_CACHE_SHARDS": "32"}))}
    assert rows["QUEEN_SYNC_CACHE_SHARDS"].value == "32"
    assert "has no meaning here" in rows["QUEEN_SYNC_CACHE_SHARDS"].meaning


def test_values_come_from_the_environment_and_options_win() -> None:
    settings = config.load({"PORT": " 7000 ", "LOG_LEVEL": "DEBUG", "QUEEN_CORS_ORIGINS": "http://a, http://b"}, {"port": "7001"})
    assert (settings.port, settings.log_level, settings.cors_origins) == (7001, "debug", ("http://a", "http://b"))
    assert settings.sources["PORT"] == "command line"
    assert settings.sources["LOG_LEVEL"] == "environment"
    assert settings.sources["HOST"] == "default"
    assert settings.server_id.endswith(":7001")


def test_an_empty_variable_counts_as_unset() -> None:
    assert config.load({"PORT": "", "PG_HOST": " "}).port == 6632
    assert config.load({"PG_HOST": " "}).database is None


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PORT", "http", "whole number from 1 to 65535"),
        ("PORT", "0", "whole number from 1 to 65535"),
        ("PORT", "70000", "whole number from 1 to 65535"),
        ("PORT", "6632.5", "whole number"),
        ("PORT", "６６３２", "whole number"),
        ("LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("DEFAULT_SUBSCRIPTION_MODE", "some", "one of all, new, new-only"),
        ("QUEEN_SYNC_ENABLED", "maybe", "true or false"),
        ("QUEEN_COORDINATOR_FORWARD_THRESHOLD", "nan", "number from 0 to 1"),
        ("QUEEN_COORDINATOR_FORWARD_THRESHOLD", "1.5", "number from 0 to 1"),
        ("QUEEN_DATABASE_URL", "mysql://host/db", "postgresql://"),
        ("QUEEN_ADVERTISED_URL", "queue-1:6632", "http://"),
        ("QUEEN_MAX_BODY_MB", "9" * 30, "whole number from 1 to 1024"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(SetupError) as refused:
        config.load({name: value})
    text = str(refused.value)
    assert name in text
    assert allowed in text
    assert "default" in text


def test_a_refused_secret_is_not_printed() -> None:
    with pytest.raises(SetupError) as refused:
        config.load({"QUEEN_ENCRYPTION_KEY": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert "64 hexadecimal digits" in str(refused.value)


def test_secrets_are_masked_in_the_listing_and_in_the_representation() -> None:
    environ = {
        "QUEEN_DATABASE_URL": "postgresql://anna:hunter2@db:5433/queue?password=hunter2&sslmode=require",
        "PG_PASSWORD": "hunter2",
        "QUEEN_ENCRYPTION_KEY": KEY,
        "QUEEN_SYNC_SECRET": KEY,
    }
    settings = config.load(environ)
    shown = repr(settings) + "".join(row.value for row in config.listing(settings))
    assert "hunter2" not in shown
    assert KEY not in shown
    assert "postgresql://anna:***@db:5433/queue?password=***&sslmode=require" in shown


def test_the_encryption_keys_are_read_in_order_and_only_in_one_form() -> None:
    other = "cd" * 32
    assert config.load({}).keys == ()
    assert config.load({"QUEEN_ENCRYPTION_KEY": KEY}).keys == (("default", bytes.fromhex(KEY)),)
    assert config.load({"QUEEN_ENCRYPTION_KEYS": f"b:{other}, a:{KEY}"}).keys == (("b", bytes.fromhex(other)), ("a", bytes.fromhex(KEY)))
    for bad in (f"a:{KEY},a:{other}", "a", f":{KEY}", f"a:{KEY},"):
        with pytest.raises(SetupError, match="QUEEN_ENCRYPTION_KEYS"):
            config.load({"QUEEN_ENCRYPTION_KEYS": bad})
    with pytest.raises(SetupError, match="both set"):
        config.load({"QUEEN_ENCRYPTION_KEY": KEY, "QUEEN_ENCRYPTION_KEYS": f"a:{other}"})


def test_without_any_database_setting_the_embedded_one_is_used() -> None:
    assert config.load({}).database is None


def test_a_single_pg_variable_names_an_outside_database() -> None:
    assert config.load({"PG_HOST": "db"}).database == "postgresql://postgres@db:5432/postgres"
    full = {"PG_HOST": "::1", "PG_PORT": "5433", "PG_DB": "my queue", "PG_USER": "a@b", "PG_PASSWORD": "p:/w"}
    assert config.load(full).database == "postgresql://a%40b:p%3A%2Fw@[::1]:5433/my%20queue"
    assert config.load({"PG_HOST": "/run/pg"}).database == "postgresql://postgres@/postgres?host=/run/pg&port=5432"


def test_the_url_wins_over_the_pg_variables() -> None:
    assert config.load({"QUEEN_DATABASE_URL": "postgresql://u@h/d", "PG_HOST": "other"}).database == "postgresql://u@h/d"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_host_needs_no_word(host: str) -> None:
    config.refuse_open_host(config.load({"HOST": host}), insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "queue.example"])
def test_any_other_host_is_refused_without_insecure(host: str) -> None:
    settings = config.load({"HOST": host})
    with pytest.raises(SetupError, match="--insecure"):
        config.refuse_open_host(settings, insecure=False)
    config.refuse_open_host(settings, insecure=True)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SetupError, match="POP_WAIT_MAX_INTERVAL_MS"):
        config.load({"POP_WAIT_MAX_INTERVAL_MS": "50"})
    with pytest.raises(SetupError, match="QUEEN_AFFINITY_BREAK_THRESHOLD"):
        config.load({"QUEEN_AFFINITY_BREAK_THRESHOLD": "0.5"})


def test_a_slip_of_the_pen_is_noticed() -> None:
    assert config.unknown({"QUEEN_MAX_BODY_MBS": "1", "QUEEN_MAX_BODY_MB": "1", "PATH": "x"}) == [
        "QUEEN_MAX_BODY_MBS is no setting; QUEEN_MAX_BODY_MB is meant?"
    ]
