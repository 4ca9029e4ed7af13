"""Apache Kafka from the jars it publishes, run on a Java of this machine: no container, no installation.

The jars come through Maven once and stay in a cache folder; ``python -m tests.kafka.jar_broker``
fetches them ahead of time. Where Java or Maven is missing, BrokerUnavailable says so.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.kafka.broker import (
    KAFKA_VERSION,
    STOP_SECONDS,
    Broker,
    BrokerFailed,
    BrokerUnavailable,
    Login,
    free_port,
    server_properties,
    tail_of,
)

POM = Path(__file__).parent / "jars" / "pom.xml"
OLDEST_JAVA = 17
# Starting fast matters more than running fast: one compiler, one collector thread, no statistics file.
JVM = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
]
LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
]


class Java(NamedTuple):
    """A Java that can run a broker."""

    command: str
    version: str


class JarBroker(Broker):
    """A broker in a Java process of its own, with its data in a temporary folder."""

    def __init__(self, properties: Mapping[str, str] | None = None, login: Login | None = None) -> None:
        super().__init__(properties, login)
        self._java = find_java()
        self._jars = fetch_jars()
        self._home = Path(tempfile.mkdtemp(prefix="eventstore-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._archive: Path | None = None

    @property
    def name(self) -> str:
        return f"Apache Kafka {kafka_version()} from Maven's jars on Java {self._java.version}"

    def launch(self) -> None:
        """Starts the process; formats the data folder before the first start. Raises BrokerFailed."""
        settings = self._home / "server.properties"
        if not settings.exists():
            self._format(settings)
        self._archive = None if self._classes.exists() else self._classes.with_suffix(f".{uuid.uuid4().hex}")
        with (self._home / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command("-Xms64m", "-Xmx256m", archive=self._archive), "kafka.Kafka", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._process is None:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"{self.name} does not stop.\n{self.log_tail()}") from None
        self._process = None
        if self._archive is not None and self._archive.exists():
            self._archive.rename(self._classes)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        return tail_of(self._home / "broker.log", lines)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def _classes(self) -> Path:
        """An archive of loaded classes, which halves a start. Java writes it at the end of a first run."""
        return self._jars.parent / f"classes-{self._java.version}.jsa"

    def _signal(self, number: signal.Signals) -> None:
        if self.alive() and self._process is not None:
            self._process.send_signal(number)

    def _command(self, *memory: str, archive: Path | None = None) -> list[str]:
        # So that no broker outlives a test run that was killed.
        leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        classes = (
            f"-XX:ArchiveClassesAtExit={archive}" if archive else f"-XX:SharedArchiveFile={self._classes}"
        )
        jars = ":".join(str(jar) for jar in sorted(self._jars.glob("*.jar")))
        return [*leash, self._java.command, *memory, *JVM, classes, *LOGGING, "-cp", jars]

    def _format(self, settings: Path) -> None:
        properties = server_properties(self, free_port(), "127.0.0.1", str(self._home / "data"))
        draft = settings.with_suffix(".draft")
        draft.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        formatting = subprocess.run(
            [*self._command("-Xmx64m"), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(draft)],
            capture_output=True,
            text=True,
        )
        if formatting.returncode:
            raise BrokerFailed(
                f"{self.name} cannot format its data folder.\n{formatting.stdout[-2000:]}{formatting.stderr}"
            )
        draft.rename(settings)


def kafka_version() -> str:
    """The Kafka to run: EVENTSTORE_TEST_KAFKA_VERSION, or the one this project is tested with."""
    return os.environ.get("EVENTSTORE_TEST_KAFKA_VERSION") or KAFKA_VERSION


@cache
def find_java() -> Java:
    """The Java of JAVA_HOME, or else of the PATH. Raises BrokerUnavailable."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if command is None:
        raise BrokerUnavailable(
            f"no Java ({f'JAVA_HOME={home} has none' if home else 'no java on the PATH'})"
        )
    said = subprocess.run([command, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "((\d+)[^"]*)"', said)
    if found is None or int(found[2]) < OLDEST_JAVA:
        raise BrokerUnavailable(f"{command} is older than Java {OLDEST_JAVA}")
    return Java(command, found[1])


@cache
def fetch_jars() -> Path:
    """The folder with the broker's jars, fetched if the cache does not have it. Raises BrokerUnavailable."""
    version = kafka_version()
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache_home / "eventstore-kafka" / version / "jars"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailable(
            f"Kafka's jars are not in {jars}, and there is no mvn on the PATH to fetch them"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    arriving = Path(tempfile.mkdtemp(prefix="arriving-", dir=jars.parent))
    fetching = subprocess.run(
        [
            *(maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies"),
            *(f"-Dkafka.version={version}", f"-DoutputDirectory={arriving}"),
        ],
        capture_output=True,
        text=True,
    )
    if fetching.returncode:
        shutil.rmtree(arriving)
        raise BrokerUnavailable(f"mvn could not fetch Kafka {version}: {fetching.stdout.strip()[-500:]}")
    try:
        arriving.rename(jars)
    except OSError:  # another run was faster
        shutil.rmtree(arriving)
    return jars


if __name__ == "__main__":
    try:
        print(f"Kafka {kafka_version()} is in {fetch_jars()}")
    except BrokerUnavailable as unavailable:
        sys.exit(str(unavailable))
