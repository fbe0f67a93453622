"""Calls a running examples/serve with the clients that are installed, and prints a table.

usage: clients.py GROUP HTTP_PORT GRPC_PORT ADMIN_PORT IMAGE PROTO

GROUP is tritonclient, kserve or programs. The first two have messages of equal names, so one
process cannot have both.

A line is: what is called | client | works, refused: TEXT, or not run: WHY
A call that should work and does not, or the other way round, makes the exit status 1.
"""

import asyncio
import json
import queue
import re
import shutil
import subprocess
import sys
import tempfile

group, http, grpc, admin, image_path, proto = sys.argv[1:]
http_at, grpc_at, admin_at = (f"localhost:{port}" for port in (http, grpc, admin))
image = open(image_path, "rb").read()
wrong = 0


def line(call, client, result):
    print(f"| {call} | {client} | {result} |", flush=True)


def text_of(error):
    details = getattr(error, "details", None)  # of gRPC's own errors
    text = f"{error.code()} {details()}" if callable(details) else str(error)
    text = " ".join(text.split())
    for port, name in ((http, "PORT"), (grpc, "PORT"), (admin, "PORT")):
        text = text.replace(port, name)
    return text[:160].replace("|", "/")


def try_call(call, client, fn, refused=False):
    """Prints what came of fn. A result that is False is a failure."""
    global wrong
    try:
        result = fn()
        ok, text = result is not False, "works"
        if not ok:
            text = "wrong answer"
    except Exception as e:  # the table has the text
        ok, text = False, "refused: " + text_of(e)
        if re.search(r"Traceback|connection|reset|JSONDecode", text, re.I) or not refused:
            text = "FAILS: " + type(e).__name__ + " " + text_of(e)
    if ok == refused or "FAILS" in text or "wrong" in text:
        wrong += 1
        text = text if "FAILS" in text else "UNEXPECTED: " + text
    line(call, client, text)


def frog(scores):
    return scores.shape == (1, 10) and scores.argmax() == 6


def triton():
    import numpy as np
    import tritonclient.grpc as tgrpc
    import tritonclient.http as thttp

    for client, module, address in (("tritonclient HTTP", thttp, http_at), ("tritonclient gRPC", tgrpc, grpc_at)):
        is_http = module is thttp
        c = module.InferenceServerClient(address)
        as_json = {} if is_http else {"as_json": True}

        def image_input(binary=True):
            i = module.InferInput("image", [1], "BYTES")
            array = np.array([image], dtype=np.object_)
            i.set_data_from_numpy(array, binary_data=binary) if is_http else i.set_data_from_numpy(array)
            return i

        def pixels(n, binary=True, value=0):
            i = module.InferInput("image", [n, 32, 32, 3], "UINT8")
            array = np.full([n, 32, 32, 3], value, dtype=np.uint8)
            i.set_data_from_numpy(array, binary_data=binary) if is_http else i.set_data_from_numpy(array)
            return i

        def infer(i, **more):
            return c.infer("cifar10", [i], **more)

        def scores(answer):
            return answer.as_numpy("probabilities")

        try_call("ServerLive", client, c.is_server_live)
        try_call("ServerReady", client, c.is_server_ready)
        try_call("ModelReady", client, lambda: c.is_model_ready("cifar10"))
        try_call("ModelReady, version", client, lambda: c.is_model_ready("cifar10", "1"))
        try_call("ModelReady, unknown: answers not ready", client, lambda: c.is_model_ready("none") is False)
        try_call("ServerMetadata", client, lambda: c.get_server_metadata(**as_json)["name"] == "streamtorch")
        try_call("ModelMetadata", client, lambda: c.get_model_metadata("cifar10", **as_json)["inputs"][0]["name"] == "image")
        try_call("ModelMetadata, unknown", client, lambda: c.get_model_metadata("none"), refused=True)
        config = lambda: c.get_model_config("cifar10", **as_json)
        try_call("ModelConfig", client, lambda: (config() if is_http else config()["config"])["max_batch_size"] == 32)
        try_call("ModelInfer, pixels, binary", client, lambda: scores(infer(pixels(3))).shape == (3, 10))
        try_call("ModelInfer, outputs named", client, lambda: scores(infer(pixels(2), outputs=[module.InferRequestedOutput("probabilities")])).shape == (2, 10))
        try_call("ModelInfer, encoded image as BYTES", client, lambda: frog(scores(infer(image_input()))))
        if is_http:
            try_call("ModelInfer, pixels and answer in JSON", client, lambda: np.allclose(
                scores(infer(pixels(1, False, 7), outputs=[module.InferRequestedOutput("probabilities", binary_data=False)])), scores(infer(pixels(1, True, 7))), atol=1e-6))
            for algorithm in ("gzip", "deflate"):
                try_call("ModelInfer, request in " + algorithm, client, lambda: scores(infer(pixels(1), request_compression_algorithm=algorithm)).shape == (1, 10))
                try_call("ModelInfer, answer may be " + algorithm, client, lambda: scores(infer(pixels(1), response_compression_algorithm=algorithm)).shape == (1, 10))
            body, length = c.generate_request_body([pixels(1)])
            try_call("ModelInfer, body made and parsed apart", client, lambda: scores(apart(c, body, length)).shape == (1, 10))
        else:
            try_call("ModelInfer, gzip", client, lambda: scores(infer(pixels(1), compression_algorithm="gzip")).shape == (1, 10))
            try_call("ModelInfer, deflate", client, lambda: infer(pixels(1), compression_algorithm="deflate"), refused=True)
        top = lambda: infer(image_input(), outputs=[module.InferRequestedOutput("probabilities", class_count=2)]).as_numpy("probabilities")
        try_call("ModelInfer, classification", client, lambda: top().shape == (1, 2) and top()[0][0].endswith(b":6:frog"))
        try_call("ModelInfer, id, priority and timeout", client, lambda: (lambda a: (a["id"] if is_http else a.id) == "9")(infer(pixels(1), request_id="9", priority=1, timeout=5_000_000).get_response()))
        try_call("ModelInfer, unknown model", client, lambda: c.infer("none", [pixels(1)]), refused=True)
        try_call("ModelInfer, unknown version", client, lambda: c.infer("cifar10", [pixels(1)], model_version="7"), refused=True)
        try_call("ModelInfer, wrong shape", client, lambda: infer(shaped(module, np, is_http)), refused=True)
        try_call("ModelInfer, wrong output", client, lambda: infer(pixels(1), outputs=[module.InferRequestedOutput("y")]), refused=True)
        try_call("ModelInfer, too many entries", client, lambda: infer(pixels(33)), refused=True)
        try_call("ModelInfer, no image", client, lambda: infer(bad_image(module, np)), refused=True)

        def in_memory():
            i = module.InferInput("image", [1, 32, 32, 3], "UINT8")
            i.set_shared_memory("region", 3072)
            return infer(i)

        def to_memory():
            out = module.InferRequestedOutput("probabilities")
            out.set_shared_memory("region", 40)
            return infer(pixels(1), outputs=[out])

        try_call("ModelInfer, input in shared memory", client, in_memory, refused=True)
        try_call("ModelInfer, output to shared memory", client, to_memory, refused=True)
        if is_http:
            try_call("ModelInfer, async", client, lambda: frog(scores(c.async_infer("cifar10", [image_input()]).get_result())))
        else:
            def with_callback(call):
                answers = queue.Queue()
                call(lambda result, error: answers.put((result, error)))
                result, error = answers.get(timeout=10)
                if error is not None:
                    raise error
                return frog(scores(result))

            def stream():
                def call(callback):
                    c.start_stream(callback)
                    try:
                        c.async_stream_infer("cifar10", [image_input()])
                    except Exception:
                        pass  # the stream has ended already, and the callback is told why
                try:
                    return with_callback(call)
                finally:
                    c.stop_stream()

            try_call("ModelInfer, async", client, lambda: with_callback(lambda callback: c.async_infer("cifar10", [image_input()], callback)))
            try_call("ModelStreamInfer", client, stream, refused=True)
        try_call("ModelStatistics", client, lambda: int(c.get_inference_statistics("cifar10", **as_json)["model_stats"][0]["inference_count"]) > 0)
        try_call("ModelStatistics, all", client, lambda: len(c.get_inference_statistics(**as_json)["model_stats"]) == 1)
        for name, fn in {
            "RepositoryIndex": c.get_model_repository_index,
            "RepositoryModelLoad": lambda: c.load_model("cifar10"),
            "RepositoryModelUnload": lambda: c.unload_model("cifar10"),
        }.items():
            try_call(name + ", public port", client, fn, refused=True)
        for name, fn in {
            "SystemSharedMemoryStatus": c.get_system_shared_memory_status,
            "SystemSharedMemoryRegister": lambda: c.register_system_shared_memory("region", "/key", 64),
            "SystemSharedMemoryUnregister": c.unregister_system_shared_memory,
            "CudaSharedMemoryStatus": c.get_cuda_shared_memory_status,
            "CudaSharedMemoryRegister": lambda: c.register_cuda_shared_memory("region", b"aGFuZGxl", 0, 64),
            "CudaSharedMemoryUnregister": c.unregister_cuda_shared_memory,
            "TraceSetting, get": c.get_trace_settings,
            "TraceSetting, set": lambda: c.update_trace_settings(settings={"trace_rate": "1"}),
            "LogSettings, get": c.get_log_settings,
            "LogSettings, set": lambda: c.update_log_settings({"log_info": True}),
        }.items():
            try_call(name, client, fn, refused=True)

        aio(is_http, address, module, np)
        if is_http:
            a = module.InferenceServerClient(admin_at)
            client = "tritonclient HTTP, -admin"
            try_call("RepositoryIndex", client, lambda: a.get_model_repository_index()[0]["state"] == "READY")
            try_call("RepositoryModelLoad", client, lambda: a.load_model("cifar10"))
            try_call("RepositoryModelLoad, unknown", client, lambda: a.load_model("none"), refused=True)
            try_call("RepositoryModelLoad with a configuration", client, lambda: a.load_model("cifar10", config="{}"), refused=True)
            try_call("RepositoryModelUnload", client, lambda: a.unload_model("cifar10"))
            try_call("ServerReady after it: answers not ready", client, lambda: a.is_server_ready() is False)
            try_call("ModelInfer after it", client, lambda: a.infer("cifar10", [pixels(1)]), refused=True)
            try_call("RepositoryModelLoad after it", client, lambda: a.load_model("cifar10"))
            try_call("ModelInfer on the address of -admin", client, lambda: frog(scores(a.infer("cifar10", [image_input()]))))


def apart(c, body, length):
    """Sends a body that the client has made, and has the client read the answer."""
    import urllib.request

    headers = {"Inference-Header-Content-Length": str(length)} if length is not None else {}
    request = urllib.request.Request(f"http://{http_at}/v2/models/cifar10/infer", data=body, headers=headers)
    with urllib.request.urlopen(request) as answer:
        header = answer.headers.get("Inference-Header-Content-Length")
        return c.parse_response_body(answer.read(), header_length=None if header is None else int(header))


def shaped(module, np, is_http):
    i = module.InferInput("image", [1, 3, 32, 32], "UINT8")
    i.set_data_from_numpy(np.zeros([1, 3, 32, 32], dtype=np.uint8))
    return i


def bad_image(module, np):
    i = module.InferInput("image", [1], "BYTES")
    i.set_data_from_numpy(np.array([b"no image"], dtype=np.object_))
    return i


def aio(is_http, address, module, np):
    if is_http:
        import tritonclient.http.aio as m
    else:
        import tritonclient.grpc.aio as m

    async def call():
        async with m.InferenceServerClient(address) as c:
            i = m.InferInput("image", [1], "BYTES")
            i.set_data_from_numpy(np.array([image], dtype=np.object_))
            answers = await asyncio.gather(*(c.infer("cifar10", [i]) for _ in range(16)))
            return await c.is_server_ready() and all(frog(a.as_numpy("probabilities")) for a in answers)

    try_call("16 ModelInfers at once", "tritonclient.aio " + ("HTTP" if is_http else "gRPC"), lambda: asyncio.run(call()))


def kserve():
    import numpy as np
    from kserve import InferenceRESTClient, InferRequest, InferInput
    from kserve.inference_client import InferenceGRPCClient, RESTConfig

    def request(binary, name="cifar10"):
        i = InferInput("image", [1], "BYTES")
        i.set_data_from_numpy(np.array([image], dtype=np.object_), binary_data=binary)
        return InferRequest(name, [i])

    def pixels(binary, shape=(1, 32, 32, 3)):
        i = InferInput("image", list(shape), "UINT8")
        i.set_data_from_numpy(np.zeros(shape, dtype=np.uint8), binary_data=binary)
        return InferRequest("cifar10", [i])

    async def each(client, calls):
        for call, make, refused in calls:
            try:
                result = await make()
                outcome = lambda result=result: result
            except Exception as e:
                def outcome(e=e):
                    raise e
            try_call(call, client, outcome, refused)

    def scores(answer):
        return frog(answer.outputs[0].as_numpy())

    async def rest():
        c, base = InferenceRESTClient(RESTConfig(protocol="v2", retries=0)), "http://" + http_at

        async def infer(r):
            return (await c.infer(base, r, model_name="cifar10")).outputs[0].as_numpy()

        async def true(awaitable, fn):
            return fn(await awaitable)

        await each("kserve InferenceRESTClient", (
            ("ServerLive", lambda: c.is_server_live(base), False),
            ("ServerReady", lambda: c.is_server_ready(base), False),
            ("ModelReady", lambda: c.is_model_ready(base, "cifar10"), False),
            ("ModelReady, unknown: answers not ready", lambda: true(c.is_model_ready(base, "none"), lambda ready: ready is False), False),
            ("ModelInfer, pixels, binary", lambda: true(infer(pixels(True)), lambda a: a.shape == (1, 10)), False),
            ("ModelInfer, pixels and answer in JSON", lambda: true(infer(pixels(False)), lambda a: np.reshape(a, (1, 10)).shape == (1, 10)), False),
            ("ModelInfer, encoded image as BYTES", lambda: true(infer(request(True)), frog), False),
            ("ModelInfer, wrong shape", lambda: infer(pixels(True, (1, 3, 32, 32))), True),
        ))
        await c.close()

    async def rpc():
        c = InferenceGRPCClient(grpc_at)

        async def infer(r):
            return (await c.infer(r)).outputs[0].as_numpy()

        async def true(awaitable, fn):
            return fn(await awaitable)

        await each("kserve InferenceGRPCClient", (
            ("ServerLive", lambda: c.is_server_live(), False),
            ("ServerReady", lambda: c.is_server_ready(), False),
            ("ModelReady", lambda: c.is_model_ready("cifar10"), False),
            ("ModelReady, unknown: answers not ready", lambda: true(c.is_model_ready("none"), lambda ready: ready is False), False),
            ("ModelInfer, pixels, raw", lambda: true(infer(pixels(True)), lambda a: a.shape == (1, 10)), False),
            ("ModelInfer, pixels, typed contents", lambda: true(infer(pixels(False)), lambda a: a.shape == (1, 10)), False),
            ("ModelInfer, encoded image as BYTES, raw", lambda: true(infer(request(True)), frog), False),
            ("ModelInfer, unknown model", lambda: infer(request(True, "none")), True),
        ))
        await c.close()

    asyncio.run(rest())
    asyncio.run(rpc())


def command(call, client, args, want, stdin=None):
    """Runs a program, whose output must match."""
    if shutil.which(client) is None:
        line(call, client, "not run: not installed")
        return

    def run():
        out = subprocess.run(args, input=stdin, capture_output=True, timeout=60)
        text = (out.stdout + out.stderr).decode(errors="replace")
        if out.returncode != 0 or not re.search(want, text):
            raise RuntimeError(f"status {out.returncode}: {text[-300:]}")

    try_call(call, client, run)


def programs():
    infer, classify = f"http://{http_at}/v2/models/cifar10/infer", f"http://{http_at}/v2/models/cifar10/classify"
    pixels = {"name": "image", "datatype": "UINT8", "shape": [1, 32, 32, 3], "data": [0] * 3072}
    body = json.dumps({"inputs": [pixels]})
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/body.json"
        open(path, "w").write(body)
        for p in ("", "/health/live", "/health/ready", "/models/cifar10", "/models/cifar10/ready", "/models/cifar10/config", "/models/cifar10/stats", "/models/stats"):
            command("GET /v2" + p, "curl", ["curl", "-sf", f"http://{http_at}/v2{p}"], r"^\{")
        command("POST .../infer, JSON", "curl", ["curl", "-sf", "-d", "@" + path, infer], r'"shape":\[1,10\]')
        command("POST .../infer, JSON in gzip", "curl", ["curl", "-sf", "-H", "Content-Encoding: gzip", "--data-binary", "@-", infer], r'"shape":\[1,10\]', gzipped(body))
        command("POST .../classify", "curl", ["curl", "-sf", "--data-binary", "@" + image_path, classify], r'"class":"frog"')
        command("GET /metrics on -admin", "curl", ["curl", "-sf", f"http://{admin_at}/metrics"], "streamtorch_requests_total")
        script = folder + "/post.lua"
        open(script, "w").write(f'wrk.method = "POST"\nlocal f = io.open("{path}", "rb")\nwrk.body = f:read("*a")\n')
        command("POST .../infer under load", "wrk", ["wrk", "-t1", "-c8", "-d2s", "-s", script, infer], r"requests in(?![\s\S]*(Non-2xx|Socket errors))")
        targets = folder + "/targets"
        open(targets, "w").write(f"POST {infer}\nContent-Type: application/json\n@{path}\n")
        command("POST .../infer under load", "vegeta", ["sh", "-c", f"vegeta attack -targets {targets} -rate 50 -duration 2s | vegeta report"], r"200:100")
        message = json.dumps({"model_name": "cifar10", "inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 32, 32, 3], "contents": {"uint_contents": [0] * 3072}}]})
        call = "inference.GRPCInferenceService.ModelInfer"
        ghz = ["ghz", "--insecure", "--call", call, "-d", message, "-n", "100", "-c", "8"]
        command("ModelInfer under load, by reflection", "ghz", ghz + [grpc_at], r"\[OK\] +100 responses")
        command("ModelInfer under load, by inference.proto", "ghz", ghz + ["--proto", proto, grpc_at], r"\[OK\] +100 responses")
        command("list, by reflection", "grpcurl", ["grpcurl", "-plaintext", grpc_at, "list"], r"inference\.GRPCInferenceService")
        command("ServerReady, by reflection", "grpcurl", ["grpcurl", "-plaintext", grpc_at, "inference.GRPCInferenceService/ServerReady"], r'"ready": true')
        command("grpc.health.v1.Health/Check", "grpcurl", ["grpcurl", "-plaintext", grpc_at, "grpc.health.v1.Health/Check"], "SERVING")


def gzipped(text):
    import gzip

    return gzip.compress(text.encode())


try:
    {"tritonclient": triton, "kserve": kserve, "programs": programs}[group]()
except ImportError as e:
    line("all", group, f"not run: {text_of(e)}")
sys.exit(1 if wrong else 0)
