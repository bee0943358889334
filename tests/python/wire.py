"""What stands between a client and the server: tokens, foreign requests, connections that break, clients that die.

    python wire.py SCRATCH
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import uuid

import grpc
import pyspark.sql.connect.proto as pb2
from pyspark.sql.connect.proto import base_pb2_grpc

from client import Server, native
from common import TARGET, silverflow

SERVICE = "/spark.connect.SparkConnectService/"
FAILED = []


def check(name, condition, said=""):
    if not condition:
        FAILED.append(f"{name}: {said}")


def address(server):
    return server.remote.removeprefix("sc://")


def config(session):
    get = pb2.ConfigRequest.Operation(get=pb2.ConfigRequest.Get(keys=["spark.sql.session.timeZone"]))
    return pb2.ConfigRequest(session_id=session, operation=get)


def raw(channel, method, request, stream=False, **named):
    """A call with bytes as they are; gives the status code of a failure, or the answer."""
    kind = channel.unary_stream if stream else channel.unary_unary
    call = kind(SERVICE + method, request_serializer=lambda b: b, response_deserializer=lambda b: b)
    try:
        answer = call(request, timeout=20, **named)
        return list(answer) if stream else answer
    except grpc.RpcError as error:
        return error.code()


def foreign(server):
    """Requests that no client sends."""
    session = str(uuid.uuid4())
    with grpc.insecure_channel(address(server)) as channel:
        for noise in (b"\xff\xff\xff", b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", os.urandom(200)):
            for method, stream in (("Config", False), ("ExecutePlan", True), ("AnalyzePlan", False)):
                found = raw(channel, method, noise, stream)
                check(f"noise to {method}", isinstance(found, grpc.StatusCode), found)
        check("no such method", raw(channel, "Nope", b"") == grpc.StatusCode.UNIMPLEMENTED)
        plan = pb2.ExecutePlanRequest(session_id=session, operation_id=str(uuid.uuid4()))
        plan.plan.root.SetInParent()
        found = raw(channel, "ExecutePlan", plan.SerializeToString(), True)
        check("an empty relation", found == grpc.StatusCode.INVALID_ARGUMENT, found)
        found = raw(channel, "Config", config("no uuid").SerializeToString())
        check("a session that is no UUID", found == grpc.StatusCode.INTERNAL, found)
        deep = b""
        for _ in range(20_000):
            deep = b"\x3a" + varint(len(deep) + len(varint(len(deep))) + 1) + b"\x0a" + varint(len(deep)) + deep
        plan = pb2.ExecutePlanRequest(session_id=session, operation_id=str(uuid.uuid4()))
        request = plan.SerializeToString() + field(3, field(1, deep))
        found = raw(channel, "ExecutePlan", request, True)
        check("a relation that nests without end", found == grpc.StatusCode.INVALID_ARGUMENT, found)
    host, port = address(server).split(":")
    with socket.create_connection((host, int(port)), timeout=20) as probe:
        probe.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            while probe.recv(4096):
                pass
        except ConnectionResetError:
            pass
    with grpc.insecure_channel(address(server)) as channel:
        answer = base_pb2_grpc.SparkConnectServiceStub(channel).Config(config(session), timeout=20)
        check("the server after all that", answer.pairs[0].value == "UTC", answer)


def idle(server):
    """Connections that begin and then ask for nothing do not keep others out."""
    host, port = address(server).split(":")
    held = []
    for _ in range(300):
        try:
            held.append(socket.create_connection((host, int(port)), timeout=20))
            held[-1].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        except OSError:
            pass
    with grpc.insecure_channel(address(server)) as channel:
        stub = base_pb2_grpc.SparkConnectServiceStub(channel)
        try:
            answer = stub.Config(config(str(uuid.uuid4())), timeout=60, wait_for_ready=True)
            check("beside idle connections", answer.pairs[0].value == "UTC", answer)
        except grpc.RpcError as error:
            check("beside idle connections", False, error.code())
    for one in held:
        one.close()


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def field(number, content):
    return varint(number * 8 + 2) + varint(len(content)) + content


def tokens():
    """A server that others can reach needs a token, and a client that bears it."""
    done = subprocess.run(
        [str(TARGET / "silverflow"), "serve", "--address", "0.0.0.0:0"], capture_output=True, text=True, timeout=60
    )
    check("an open address without a token", done.returncode == 2 and "TOKEN_NEEDED" in done.stderr, done.stderr)
    with Server("--token", "secret") as server, grpc.insecure_channel(address(server)) as channel:
        request = config(str(uuid.uuid4())).SerializeToString()
        for bearer in (None, "Bearer wrong!", "secret", "Bearer secret2"):
            metadata = [("authorization", bearer)] if bearer else []
            found = raw(channel, "Config", request, metadata=metadata)
            check(f"the token {bearer}", found == grpc.StatusCode.UNAUTHENTICATED, found)
        found = raw(channel, "Config", request, metadata=[("authorization", "Bearer secret")])
        check("the right token", isinstance(found, bytes), found)


def reattached(server):
    """An answer is picked up where the connection broke."""
    with grpc.insecure_channel(address(server)) as channel:
        stub = base_pb2_grpc.SparkConnectServiceStub(channel)
        session, operation = str(uuid.uuid4()), str(uuid.uuid4())
        request = pb2.ExecutePlanRequest(session_id=session, operation_id=operation)
        request.plan.root.range.end = 35_000
        request.plan.root.range.step = 1
        stream = stub.ExecutePlan(request, timeout=60)
        first = [next(stream), next(stream)]
        stream.cancel()
        again = pb2.ReattachExecuteRequest(
            session_id=session, operation_id=operation, last_response_id=first[-1].response_id
        )
        rest = list(stub.ReattachExecute(again, timeout=60))
        rows = sum(one.arrow_batch.row_count for one in first + rest)
        check("rows over two connections", rows == 35_000, rows)
        check("the end", rest[-1].HasField("result_complete"), rest[-1])
        until = pb2.ReleaseExecuteRequest(session_id=session, operation_id=operation)
        until.release_until.response_id = rest[0].response_id
        stub.ReleaseExecute(until, timeout=20)
        again.last_response_id = first[0].response_id
        try:
            list(stub.ReattachExecute(again, timeout=20))
            check("released answers", False, "came again")
        except grpc.RpcError as error:
            check("released answers", error.code() == grpc.StatusCode.OUT_OF_RANGE, error.code())
        everything = pb2.ReleaseExecuteRequest(session_id=session, operation_id=operation)
        everything.release_all.SetInParent()
        stub.ReleaseExecute(everything, timeout=20)
        try:
            list(stub.ReattachExecute(again, timeout=20))
            check("a released operation", False, "is still there")
        except grpc.RpcError as error:
            check("a released operation", "INVALID_HANDLE.OPERATION_NOT_FOUND" in error.details(), error.details())


def dying(server, scratch):
    """A client that is killed while its pipeline runs leaves a run that ends by itself."""
    spec = native(scratch)
    for number in range(200):
        rows = "".join(f'{{"id": {n}, "name": "n{number}", "op": "U", "seq": {number}}}\n' for n in range(2000))
        (scratch / "landing" / f"more_{number}.json").write_text(rows)
    command = [sys.executable, "-W", "ignore", "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)]
    environment = {**os.environ, "SPARK_REMOTE": server.remote}
    client = subprocess.Popen(command, env=environment, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in client.stdout:
        if "Run is STARTING" in line:
            break
    client.send_signal(signal.SIGKILL)
    client.wait()
    # Whoever comes second waits, or is told who has the storage; in the end both see what one of them has done.
    for _ in range(100):
        done = subprocess.run(
            [str(TARGET / "silverflow"), "run", "--spec", str(spec)], capture_output=True, text=True, timeout=300
        )
        if done.returncode == 0:
            break
        check("a second run", "STORAGE_LOCKED" in done.stderr, done.stderr)
    silverflow("verify", "--spec", spec)
    answer = silverflow("query", "--spec", spec, "SELECT COUNT(*) AS n FROM events", "--format", "json")
    check("rows after a client died", answer.strip() == '{"n":400005}', answer)


def main():
    scratch = pathlib.Path(sys.argv[1]).resolve()
    os.environ["SILVERFLOW_PYTHON"] = sys.executable
    os.environ.pop("SPARK_REMOTE", None)
    with Server() as server:
        foreign(server)
        idle(server)
        reattached(server)
        dying(server, scratch / "dying")
    tokens()
    print(f"wire: {len(FAILED)} answered otherwise")
    print("\n".join(FAILED))
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
