"""llama.cpp's HTTP server out of the `xllamacpp` wheel: GGUF PORT THREADS SLOTS."""

import signal
import sys

import xllamacpp

CONTEXT_PER_SLOT = 512


def main(gguf: str, port: str, threads: str, slots: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.cpuparams.n_threads = int(threads)
    params.cpuparams_batch.n_threads = int(threads)
    params.n_parallel = int(slots)
    params.n_ctx = int(slots) * CONTEXT_PER_SLOT
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    del server


if __name__ == "__main__":
    main(*sys.argv[1:])
