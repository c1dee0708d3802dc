"""A pool of Python workers for an engine that asks for them over the network, as Flink does beside each of its TaskManagers.

    python -m tidegate.pipelines.worker_pool --port 50000

Beam has one too. This one differs where a stream must survive accidents:

- A worker that dies while the engine still waits for it is started again. Flink waits for ever for a worker that it has asked
  for, so one that died on its way there would leave a job hanging that says it is running.
- It starts its own interpreter, not whatever `python` is first on the PATH.
- It listens on localhost alone unless told otherwise: whoever reaches it can run code.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.utils import thread_pool_executor

TRIES = 10
SECONDS_BETWEEN_TRIES = 1.0
SECONDS_TO_END = 10.0

_WORK = """
import sys
from apache_beam.runners.worker.sdk_worker import SdkHarness
SdkHarness(sys.argv[1], worker_id=sys.argv[2], state_cache_size=0, data_buffer_time_limit_ms=-1).run()
"""


@dataclass
class Worker:
    """A process, what it was asked for, and how often it has been started."""

    name: str
    control: str
    process: subprocess.Popen[bytes]
    tries: int = 1


class Pool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts workers, and again those that die while they are wanted."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._lock = threading.Lock()

    def StartWorker(self, request: Any, _: Any) -> Any:  # noqa: N802  (the name in the protocol)
        name, control = request.worker_id, request.control_endpoint.url
        try:
            with self._lock:
                self._workers.append(Worker(name, control, _start(control, name)))
        except OSError as problem:
            return beam_fn_api_pb2.StartWorkerResponse(error=f"a worker cannot be started: {problem.strerror}")
        say(f"worker {name} for {control} started")
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, _: Any) -> Any:  # noqa: N802
        with self._lock:
            named = [worker for worker in self._workers if worker.name == request.worker_id]
            # Of two TaskManagers each has a worker of that name. Which of them is meant is not said, but the one that is
            # ends by itself when its engine hangs up.
            if len(named) == 1:
                self._workers.remove(named[0])
        if len(named) == 1:
            _end(named[0].process)
        return beam_fn_api_pb2.StopWorkerResponse()

    def look_after(self) -> None:
        """Start again what was killed and may still be waited for; forget the rest."""
        with self._lock:
            for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
                done = worker.process.returncode == 0  # its engine hung up
                if done or worker.tries >= TRIES or not _listens(worker.control):
                    self._workers.remove(worker)
                    continue
                worker.tries += 1
                worker.process = _start(worker.control, worker.name)
                say(f"worker {worker.name} for {worker.control} had died and is started again")

    def close(self) -> None:
        with self._lock:
            for worker in self._workers:
                _end(worker.process)
            self._workers.clear()


def _start(control: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _WORK, control, name], stdin=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
        return True
    return False


def say(what: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n")


def serve(host: str, port: int) -> tuple[Pool, grpc.Server, int]:
    """A pool that listens; gives its port, which is a free one for 0."""
    options = [("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0), ("grpc.so_reuseport", 0)]
    server = grpc.server(thread_pool_executor.shared_unbounded_instance(), options=options)
    taken = server.add_insecure_port(f"{host}:{port}")
    pool = Pool()
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    server.start()
    return pool, server, taken


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tidegate.pipelines.worker_pool", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--port", type=int, required=True, help="where an engine asks for workers")
    parser.add_argument("--host", default="localhost", help="the address to listen on [localhost]")
    asked = parser.parse_args(arguments)
    pool, server, port = serve(asked.host, asked.port)
    say(f"workers can be asked for at {asked.host}:{port}")
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    while not ending.wait(SECONDS_BETWEEN_TRIES):
        pool.look_after()
    server.stop(0)
    pool.close()


if __name__ == "__main__":
    main()
