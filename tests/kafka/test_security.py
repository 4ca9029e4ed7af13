"""Who may connect: passwords and certificates pass through, are checked, and are never shown."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr

from eventstore import EventStore
from eventstore.connection import KafkaOptions, parse
from eventstore.errors import InvalidConfig, LogUnavailable
from tests.kafka.broker import Broker, Login
from tests.kafka.kit import Place, new_name, our_threads, took, within
from tests.kafka.plugin import NewBroker
from tests.scenarios.kit import python

SECRET = "s3cr/t?#@:x"
QUOTED = "s3cr%2Ft%3F%23%40%3Ax"


def stored(store: EventStore) -> None:
    with store:
        store.put(("u",), "k", {"n": 1})
        assert store.get(("u",), "k").value == {"n": 1}
        assert SECRET not in repr(store._config) + store.status().log


def test_a_password(
    new_kafka_broker: NewBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="eventstore")
    broker = new_kafka_broker(login=Login("ann", SECRET))
    sasl = "security_protocol=SASL_PLAINTEXT&put_timeout=2&connect_timeout=2&partitions=1"
    plain = f"kafka://{broker.address}/{new_name()}"

    # In the connection string, a config object, the environment.
    stored(
        EventStore.open(f"kafka://ann:{QUOTED}@{broker.address}/{new_name()}?{sasl}", views=tmp_path / "a")
    )
    chosen = KafkaOptions(
        security_protocol="SASL_PLAINTEXT", username="ann", password=SecretStr(SECRET), partitions=1
    )
    stored(EventStore.open(plain, views=tmp_path / "b", config={"kafka": chosen}))
    with monkeypatch.context() as environment:
        environment.setenv("EVENTSTORE_KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
        environment.setenv("EVENTSTORE_KAFKA_USERNAME", "ann")
        environment.setenv("EVENTSTORE_KAFKA_PASSWORD", SECRET)
        stored(EventStore.open(plain, views=tmp_path / "b"))

    # Refused by name, without a thread left behind; at once, unless the broker hangs up too soon.
    before = our_threads()
    for who in (f"ann:{SECRET[:4]}", f"bob:{QUOTED}"):
        with took(0, 5), pytest.raises((InvalidConfig, LogUnavailable), match="the password") as refused:
            EventStore.open(f"kafka://{who}@{broker.address}/{new_name()}?{sasl}", views=tmp_path / "c")
        assert SECRET not in str(refused.value) and QUOTED not in str(refused.value)
    assert within(3, lambda: our_threads() <= before)
    with took(0, 4), pytest.raises((LogUnavailable, InvalidConfig), match="security_protocol"):
        EventStore.open(f"{plain}?connect_timeout=1", views=tmp_path / "c")
    assert SECRET not in caplog.text


def test_a_password_where_none_is_asked_for(kafka_broker: Broker, tmp_path: Path) -> None:
    where = f"kafka://ann:{QUOTED}@{kafka_broker.address}/{new_name()}?security_protocol=SASL_PLAINTEXT"
    with took(0, 4), pytest.raises(InvalidConfig, match="SASL_PLAINTEXT") as refused:
        EventStore.open(f"{where}&connect_timeout=3", views=tmp_path)
    assert SECRET not in str(refused.value)


@pytest.mark.skipif(shutil.which("keytool") is None, reason="keytool makes the broker's certificate")
def test_tls(new_kafka_broker: NewBroker, tmp_path: Path) -> None:
    store, certificate = tmp_path / "broker.p12", tmp_path / "broker.pem"
    given = ["-keystore", str(store), "-storepass", "broker-secret", "-alias", "broker"]
    subprocess.run(
        [
            *("keytool", "-genkeypair", *given, "-keyalg", "RSA", "-validity", "2", "-storetype", "PKCS12"),
            *("-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["keytool", "-exportcert", "-rfc", *given, "-file", str(certificate)], check=True, capture_output=True
    )
    broker = new_kafka_broker(running=False)
    broker.properties |= {
        "listener.security.protocol.map": "CLIENT:SSL,CONTROLLER:PLAINTEXT",
        "listener.name.client.ssl.keystore.location": str(store),
        "listener.name.client.ssl.keystore.password": "broker-secret",
        "listener.name.client.ssl.keystore.type": "PKCS12",
        "ssl.truststore.location": str(store),
        "ssl.truststore.password": "broker-secret",
        "ssl.truststore.type": "PKCS12",
    }
    secured = dict(broker.client) | {"security_protocol": "SSL", "ssl_cafile": str(certificate)}
    type(broker).client, kept = property(lambda self: secured), type(broker).client
    try:
        broker.start()
    finally:
        type(broker).client = kept
    at = f"kafka://{broker.address}/{new_name()}?security_protocol=SSL&partitions=1&connect_timeout=5"
    stored(EventStore.open(f"{at}&ssl_cafile={certificate}", views=tmp_path / "a"))
    # A certificate nobody vouches for. In a process of its own: kafka-python leaves its socket open.
    with took(0, 10):
        refused = python(REFUSED, at, tmp_path / "b")
    assert "InvalidConfig" in refused.stdout and "ssl_cafile does not cover" in refused.stdout, refused


REFUSED = """
import sys, warnings
warnings.simplefilter("ignore")
from eventstore import EventStore
try:
    EventStore.open(sys.argv[1], views=sys.argv[2])
except Exception as error:
    print(type(error).__name__, error)
"""


def test_missing_certificate_files_are_named(kafka_broker: Broker, tmp_path: Path) -> None:
    at = f"kafka://{kafka_broker.address}/{new_name()}?security_protocol=SSL&connect_timeout=1"
    with took(0, 1), pytest.raises(InvalidConfig, match="ssl_cafile"):
        EventStore.open(f"{at}&ssl_cafile={tmp_path / 'none.pem'}", views=tmp_path)


# ---------------------------------------------------------------------- what strings say


@pytest.mark.parametrize(
    "conn_string",
    [
        f"kafka://ann:{SECRET}@host:9092/topic?security_protocol=SASL_SSL",
        "kafka://ann:p/w@host:9092/topic",
        "kafka://ann:p?w@host:9092/topic",
        "kafka://ann:p#w@host:9092/topic",
        f"kafka://ann:{QUOTED}@host:9092/topic",
        f"kafka://ann:{QUOTED}@host:9092/topic?security_protocol=SASL_SSL&nothing=1",
        f"kafka://ann:{QUOTED}@host:9092/top ic?security_protocol=SASL_SSL",
        f"kafka://ann:{QUOTED}@host:9092/topic?security_protocol=SASL_SSL&password={QUOTED}&partitions=x",
    ],
)
def test_errors_about_connection_strings_show_no_password(conn_string: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse(conn_string)
    text = str(refused.value)
    for secret in (SECRET, QUOTED, "s3cr", "p/w", "'p'", "ann:p"):
        assert secret not in text


def test_places_print_no_password() -> None:
    place = parse(f"kafka://ann:{QUOTED}@h1,h2:9093/t?security_protocol=SASL_SSL&ssl_password={QUOTED}")
    assert place.options.password.get_secret_value() == SECRET
    assert place.servers == ("h1:9092", "h2:9093")
    for text in (repr(place), str(place), place.model_dump_json()):
        assert SECRET not in text and QUOTED not in text


def test_what_is_nearer_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTSTORE_KAFKA_PUT_TIMEOUT", "1")
    monkeypatch.setenv("EVENTSTORE_KAFKA_PARTITIONS", "1")
    monkeypatch.setenv("EVENTSTORE_KAFKA_CONNECT_TIMEOUT", "1")
    given = KafkaOptions(partitions=2, connect_timeout=2)
    options = parse("kafka://h/t?connect_timeout=3", given).options
    assert (options.put_timeout, options.partitions, options.connect_timeout) == (1, 2, 3)


def test_a_user_without_sasl_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no use with PLAINTEXT"):
        parse("kafka://ann:pw@h/t")


def test_places_can_be_named(place: Place) -> None:
    store = place.open()
    assert store.status().log == f"kafka://{place.broker.address}/{place.topic}"
