"""Behaves as Kubernetes does with `restartPolicy: OnFailure`: `pods.py N ARGS…` starts N pods and starts each again that fails.

Each pod is a torchrun of one rank that runs `-m detrain run --ckpt-dir ITS_OWN_DISK ARGS…`.
"""

import socket
import subprocess
import sys
import time

size, arguments = int(sys.argv[1]), sys.argv[2:]
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    port = one.getsockname()[1]


def start(pod: int) -> subprocess.Popen:
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={size}", "--nproc-per-node=1"]
    place = [f"--node-rank={pod}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    command = ["-m", "detrain", "run", "--ckpt-dir", f"disk_{pod}/run", *arguments]
    return subprocess.Popen([*launcher, *place, *command])


pods = {pod: start(pod) for pod in range(size)}
restarts = 0
while pods:
    time.sleep(0.05)
    for pod, process in list(pods.items()):
        status = process.poll()
        if status == 0:
            del pods[pod]
        elif status is not None:
            restarts += 1
            if restarts > 5 * size:
                sys.exit(1)
            print(f"pod {pod} restarted after {status}", file=sys.stderr, flush=True)
            pods[pod] = start(pod)
