"""Runs llama.cpp's own HTTP server in this process; started by ``tests.support.llamacpp`` with the
Python of the environment that has xllamacpp. Prints its address when it listens.

usage: llamacpp_serve.py MODEL.gguf '{"n_ctx": 16384, "slots": 4, ...}'
"""

import json
import sys
import threading

import xllamacpp

options = json.loads(sys.argv[2])
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_ctx = options["n_ctx"]
params.n_parallel = options["slots"]
params.kv_unified = options["unified"]
# threads of a step wait for each other in a busy loop: where others take the cores, two of them
# are far slower than one
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_metrics = options["metrics"]
params.endpoint_slots = params.endpoint_props = True
params.model_alias = {options["alias"]}
if options["api_key"]:
    params.api_keys = [options["api_key"]]
server = xllamacpp.Server(params)
print("LISTENING", server.listening_address, flush=True)
# ends with the process that started it, however that ends
threading.Thread(target=sys.stdin.read, daemon=True).start()
sys.stdin.read()
