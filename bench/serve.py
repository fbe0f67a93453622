"""The peer of serve/http: a LitServe server of the same model, with batches of the same size."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import peer

SERVER = """
import sys
import litserve
import numpy as np
import torch
import torchvision
import recipe

name, size, classes, batch, device, compiled, port = sys.argv[1:]
size, classes, batch = int(size), int(classes), int(batch)


class API(litserve.LitAPI):
    def setup(self, _):
        network = recipe.ResNet20(classes) if name == "resnet20" else getattr(torchvision.models, name)(num_classes=classes)
        self.mean, self.std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (recipe.MEAN, recipe.STD))
        self.network = network.eval().to(device, memory_format=torch.channels_last)
        torch.backends.cudnn.benchmark = device != "cpu"
        if compiled == "True":
            self.network = torch.compile(self.network, mode="max-autotune")
        self.predict(torch.zeros(batch, size, size, 3, dtype=torch.uint8))  # compiles before the first request

    def decode_request(self, request):
        return np.frombuffer(request["image"].file.read(), np.uint8).reshape(size, size, 3)

    def batch(self, inputs):
        return torch.from_numpy(np.stack(inputs))

    @torch.inference_mode()
    def predict(self, pixels):
        count = len(pixels)
        if compiled == "True":  # one shape for the compiler
            pixels = torch.nn.functional.pad(pixels, (0, 0, 0, 0, 0, 0, 0, batch - count))
        images = pixels.to(device).permute(0, 3, 1, 2).to(torch.float32).div(255).sub(self.mean).div(self.std)
        with torch.autocast("cuda", torch.bfloat16, enabled=device != "cpu"):
            return self.network(images)[:count].float().cpu().numpy()

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"scores": output.tolist()}


if __name__ == "__main__":
    api = API(max_batch_size=batch, batch_timeout=0.002)
    litserve.LitServer(api, accelerator="cpu" if device == "cpu" else "cuda", devices=1).run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="error")
"""

running = []


def listen(model, size, classes, batch, device, compiled, threads):
    """Starts a server, and waits until it answers."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folder = __file__.rsplit("/", 1)[0]
    with open(folder + "/litserver.py", "w") as f:
        f.write(SERVER)
    server = subprocess.Popen([sys.executable, folder + "/litserver.py", *map(str, (model, size, classes, batch, device, compiled, port))], stdout=2, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    running.append(server)
    url = f"http://127.0.0.1:{port}"
    for _ in range(6000):
        if server.poll() is not None:
            raise RuntimeError("LitServe has ended; is it installed? python -m pip install litserve python-multipart")
        try:
            if urllib.request.urlopen(url + "/health", timeout=1).status == 200:
                break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    import importlib.metadata

    return {"url": url + "/predict", "versions": "LitServe " + importlib.metadata.version("litserve")}


if __name__ == "__main__":
    try:
        peer.serve(listen)
    finally:
        for server in running:  # its workers do not end with it
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
