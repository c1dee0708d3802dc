"""A Kafka broker for tests, run by the very scripts that the documentation names."""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.needed import needs

SCRIPTS = Path(__file__).parent.parent.parent / "deploy" / "kafka"


class Broker:
    """A broker of one node in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._controller_port, closed = _free_ports(3)
        self.servers = f"127.0.0.1:{self._port}"
        self.closed = f"127.0.0.1:{closed}"
        self.settings: str | None = None

    def start(self) -> None:
        ports = ["--port", str(self._port), "--controller-port", str(self._controller_port)]
        more = []
        if self.settings is not None:
            path = self._folder / "more.properties"
            path.write_text(self.settings)
            more = ["--settings", str(path)]
        _run("start", "--folder", str(self._folder), *ports, *more)

    def restart_behind_tls(self, folder: Path, user: str, password: str) -> Path:
        """From now on it also listens at `closed`, for whoever knows the password. Gives the certificate to trust."""
        store, certificate = folder / "broker.p12", folder / "broker.pem"
        tool = ["keytool", "-noprompt", "-keystore", str(store), "-storepass", "changeit", "-alias", "broker"]
        made = [
            "-genkeypair",
            "-keyalg",
            "RSA",
            "-dname",
            "CN=localhost",
            "-ext",
            "SAN=IP:127.0.0.1",
            "-storetype",
            "PKCS12",
        ]
        for arguments in (made, ["-exportcert", "-rfc", "-file", str(certificate)]):
            subprocess.run([*tool, *arguments], check=True, capture_output=True)
        self.settings = f"""
listeners=PLAINTEXT://{self.servers},SASL_SSL://{self.closed},CONTROLLER://127.0.0.1:{self._controller_port}
advertised.listeners=PLAINTEXT://{self.servers},SASL_SSL://{self.closed}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
ssl.keystore.location={store}
ssl.keystore.password=changeit
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_{user}="{password}";
"""
        self.kill()
        self.start()
        return certificate

    def stop(self) -> None:
        _run("stop", "--folder", str(self._folder))

    def kill(self) -> None:
        _run("stop", "--folder", str(self._folder), "--kill")

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": self.servers})  # by a name, as its answers end with it
        admin.create_topics([NewTopic(name, partitions, config=dict(config or {}))])[name].result(timeout=60)
        return name

    def write(
        self, topic: str, values: Sequence[bytes | None], partition: int = 0, stamps: Sequence[int] | None = None
    ) -> None:
        """Messages, with times in milliseconds if given."""
        producer = Producer({"bootstrap.servers": self.servers, "queue.buffering.max.messages": 2_000_000})
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=partition, timestamp=stamps[number] if stamps else 0)
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0


@contextmanager
def running_broker() -> Iterator[Broker]:
    """A broker while it is needed; the tests are skipped where there cannot be one, but never on CI."""
    needs("java", "mvn")
    with TemporaryDirectory(prefix="tidegate-kafka-") as folder:
        broker = Broker(Path(folder))
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()


def _run(script: str, *arguments: str) -> None:
    done = subprocess.run([SCRIPTS / script, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
