"""Workers that die on their way to an engine are started again; those that nobody waits for are not."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, endpoints_pb2

from tidegate.pipelines import worker_pool
from tidegate.pipelines.worker_pool import Pool, serve


@pytest.fixture
def pool() -> Iterator[tuple[Pool, Callable[..., None]]]:
    """A pool, and an engine's way to ask it for something."""
    made, server, port = serve("localhost", 0)
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        asking = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)

        def ask(what: str, name: str, control: str = "") -> None:
            if what == "start":
                endpoint = endpoints_pb2.ApiServiceDescriptor(url=control)
                request = beam_fn_api_pb2.StartWorkerRequest(worker_id=name, control_endpoint=endpoint)
                assert not asking.StartWorker(request).error
            else:
                assert not asking.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id=name)).error

        yield made, ask
    server.stop(0)
    made.close()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Something that listens, as an engine does that waits for its worker; the worker itself only has to be alive."""
    monkeypatch.setattr(worker_pool, "_WORK", "import time; time.sleep(600)")
    with closing(socket.create_server(("localhost", 0))) as listening:
        yield listening


def address(listening: socket.socket) -> str:
    return f"localhost:{listening.getsockname()[1]}"


def processes(pool: Pool) -> list[subprocess.Popen[bytes]]:
    return [worker.process for worker in pool._workers]


def test_a_worker_that_is_killed_while_it_is_waited_for_comes_again(
    pool: tuple[Pool, Callable[..., None]], engine: socket.socket
) -> None:
    made, ask = pool
    ask("start", "1-1", address(engine))
    (first,) = processes(made)
    made.look_after()
    assert processes(made) == [first]
    first.kill()
    first.wait()
    made.look_after()
    (second,) = processes(made)
    assert second.pid != first.pid
    assert second.poll() is None
    engine.close()  # nobody waits any longer
    second.kill()
    second.wait()
    made.look_after()
    assert not processes(made)


def test_a_worker_that_ended_by_itself_or_was_stopped_stays_away(
    pool: tuple[Pool, Callable[..., None]], engine: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ask = pool
    ask("start", "1-1", address(engine))
    (stopped,) = processes(made)
    ask("stop", "1-1")
    assert stopped.poll() == -signal.SIGTERM
    monkeypatch.setattr(worker_pool, "_WORK", "pass")
    ask("start", "2-1", address(engine))
    processes(made)[0].wait()
    made.look_after()
    assert not processes(made)


def test_a_name_that_two_task_managers_use_stops_neither(
    pool: tuple[Pool, Callable[..., None]], engine: socket.socket
) -> None:
    made, ask = pool
    ask("start", "1-1", address(engine))
    with closing(socket.create_server(("localhost", 0))) as other:
        ask("start", "1-1", address(other))
        ask("stop", "1-1")
        assert [process.poll() for process in processes(made)] == [None, None]


def test_giving_up_on_a_worker_that_cannot_live(
    pool: tuple[Pool, Callable[..., None]], engine: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_WORK", "raise SystemExit(3)")
    made, ask = pool
    ask("start", "1-1", address(engine))
    started = set()
    while processes(made):
        (process,) = processes(made)
        process.wait()
        started.add(process.pid)
        made.look_after()
    assert len(started) == worker_pool.TRIES


def test_the_command_ends_with_its_workers() -> None:
    line = [sys.executable, "-m", "tidegate.pipelines.worker_pool", "--port", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        assert "can be asked for at localhost:" in said
        with grpc.insecure_channel(said.split()[-1]) as channel:
            asking = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
            nobody = endpoints_pb2.ApiServiceDescriptor(url="localhost:1")
            asking.StartWorker(beam_fn_api_pb2.StartWorkerRequest(worker_id="1-1", control_endpoint=nobody))
        children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True).stdout.split()
        assert len(children) == 1
        running.terminate()
        assert running.wait(30) == 0
    time.sleep(0.1)
    assert subprocess.run(["ps", "-p", children[0]], capture_output=True).returncode != 0
