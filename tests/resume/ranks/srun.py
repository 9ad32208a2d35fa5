"""Behaves as `srun` does in a job that is requeued: `srun.py N COMMAND…` starts N tasks, ends all when one fails, and begins again."""

import os
import socket
import subprocess
import sys
import time

size, command = int(sys.argv[1]), sys.argv[2:]
for restart in range(5):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    tasks = [
        subprocess.Popen(
            command,
            env={
                **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(restart),
                "SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_TASKS_PER_NODE": str(size), "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank), "SLURM_NTASKS": str(size),
            },
        )
        for rank in range(size)
    ]  # fmt: skip
    while any(task.poll() is None for task in tasks) and not any(task.poll() for task in tasks):
        time.sleep(0.02)
    status = max(abs(task.poll() or 0) for task in tasks)
    for task in tasks:
        task.terminate()
    for task in tasks:
        task.wait()
    if not status:
        break
    print(f"requeued after {status}", file=sys.stderr, flush=True)
sys.exit(status)
