"""What to know about a topic before it can be read, and how to reach the servers it is on.

Whatever lets one in, such as a password, stays in a file that only its owner can read: the settings carry its name, and every
worker reads it where it connects. So no secret is in a pipeline's graph, on a command line or in a log.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException

from tidegate.transforms.problems import SafeError, SpecError, shown

SECONDS_TO_ANSWER = 15.0

# Nothing that runs a command or loads a library, nothing that changes what is read or how it is written.
_CONNECTION_OPTIONS = frozenset(
    """
    security.protocol enable.ssl.certificate.verification client.dns.lookup broker.address.family
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem ssl.key.password
    ssl.keystore.location ssl.keystore.password ssl.crl.location ssl.cipher.suites ssl.curves.list ssl.sigalgs.list
    ssl.endpoint.identification.algorithm
    sasl.mechanism sasl.mechanisms sasl.username sasl.password
    sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.keytab
    sasl.oauthbearer.method sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.scope
    sasl.oauthbearer.extensions sasl.oauthbearer.token.endpoint.url
    socket.timeout.ms socket.keepalive.enable socket.connection.setup.timeout.ms connections.max.idle.ms
    reconnect.backoff.ms reconnect.backoff.max.ms
    """.split()  # noqa: SIM905  (a name a line would be a page)
)


@dataclass(frozen=True)
class KafkaSource:
    """A topic of events.

    Args:
      servers: Required. Where to connect first, such as kafka1:9092,kafka2:9092.
      topic: Required.
      format: Optional, default json. What a message holds: a JSON object, or an Avro record.
      schema_file: Required for avro. The file of the schema that the records were written with.
      schema_id: Optional, for avro. The number of that schema in a registry, which messages then begin with.
      group: Optional. A name for the servers' own statistics; nothing is ever committed under it.
      out_of_order: Optional, default 60. By how many seconds an event may come after a later one and still be on time.
      idle_after: Optional, default 60. A partition without new events for so many seconds no longer holds windows open.
      until_latest: Optional, default False. Read what is there when the run begins, then end.
      security_file: Optional. A file of what is needed to connect, an option of librdkafka a line, such as
        sasl.password=…; its owner alone may be able to read it.
    """

    servers: str
    topic: str
    format: Literal["json", "avro"] = "json"
    schema_file: str | None = None
    schema_id: int | None = None
    group: str | None = None
    out_of_order: float = 60.0
    idle_after: float = 60.0
    until_latest: bool = False
    security_file: str | None = None

    def __post_init__(self) -> None:
        check_address(self.servers, self.topic)
        if self.format not in ("json", "avro"):
            raise SpecError(f"format must be json or avro, not {shown(self.format)}; write format: json")
        if (self.format == "avro") != (self.schema_file is not None):
            raise SpecError(
                "schema_file is for messages in avro and required there; name the file of their schema with format: avro"
            )
        for name in ("out_of_order", "idle_after"):
            value = getattr(self, name)
            if not 0 <= value < 10**8:  # nor NaN
                raise SpecError(f"{name} must be seconds, 0 or more, not {shown(value)}; write {name}: 60")


def check_address(servers: str, topic: str) -> None:
    for name, value, example in (("servers", servers, "localhost:9092"), ("topic", topic, "events")):
        if not isinstance(value, str) or not value.strip():
            raise SpecError(
                f"{name} must be text of one character or more, not {shown(value)}; write {name}: {example}"
            )


def client_options(servers: str, security_file: str | None) -> dict[str, Any]:
    """What every client needs to connect. Holds secrets: not to be kept in anything that is pickled or shown."""
    return {
        "bootstrap.servers": servers,
        **(read_security_file(Path(security_file)) if security_file else {}),
        # The library would write to the standard error of the worker by itself; what matters is raised.
        "log_level": 2,
    }


def read_security_file(path: Path) -> dict[str, str]:
    """The options in a file, which are about connecting and nothing else."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise SpecError(f"security_file {path} cannot be read ({problem.strerror}); name a readable file") from None
    except ValueError:
        raise SpecError(f"security_file {path} must be text in UTF-8; write an option a line, as name=value") from None
    if mode & 0o077:
        raise SpecError(
            f"security_file {path} must be readable by its owner only, and its mode is {mode:04o}; run chmod 600 {path}"
        )
    options: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign:  # not quoted, as it may be a password that has lost its name
            raise SpecError(
                f"security_file {path} must have an option a line, and line {number} has no =; write name=value"
            )
        if name.strip() not in _CONNECTION_OPTIONS:
            raise SpecError(
                f"security_file {path} may hold options for connecting only, and the one in line {number} is none; "
                f"the others are set by tidegate: leave it out, or check its spelling"
            )
        options[name.strip()] = value.strip()
    return options


@contextmanager
def reaching(servers: str, topic: str) -> Iterator[None]:
    """Errors of the client as one sentence; its own words may quote an option, and an option may be a password."""
    try:
        yield
    except KafkaException as problem:
        raise SafeError(
            f"topic {topic} on {servers} cannot be reached ({error_name(problem)}); check servers, topic and rights"
        ) from None


def error_name(problem: KafkaException) -> str:
    error = problem.args[0] if problem.args else None
    return error.name() if isinstance(error, KafkaError) else type(problem).__name__
