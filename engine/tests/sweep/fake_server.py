"""A llama-server that fails on demand: by the words of a prompt, or by the arm it is started for.

usage: fake_server.py [PID_FILE] [flags of llama-server]
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FLAGS = "--port --spec-type draft-mtp --spec-draft-n-max --spec-draft-n-min --spec-draft-p-min"


def value(flag: str, otherwise: str = "0") -> str:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else otherwise


N_MAX = int(value("--spec-draft-n-max"))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path in ("/health", "/props"):
            self.answer({"model_path": "m.gguf", "build_info": "b1"})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, n = asked["prompt"], asked["n_predict"]
        is_request = n > 8  # the warm-up is short
        if is_request and "DIE" in prompt:
            print("error: out of luck", flush=True)
            os._exit(7)
        if is_request and "HANG" in prompt:
            time.sleep(600)
        steps = n - 1 if not N_MAX else (n - 1) // 2
        timings = {
            "prompt_n": 3, "prompt_ms": 1.5, "predicted_n": n, "predicted_ms": 2.0 * n,
            **({"draft_n": steps * N_MAX, "draft_n_accepted": n - 1 - steps} if N_MAX else {}),
        }  # fmt: skip
        if N_MAX:
            counts = f"{n - 1 - steps} accepted / {steps * N_MAX} generated"
            print(f"slot print_timing: draft acceptance rate = 0.4 ({counts})", flush=True)
        if is_request and "NONSENSE" in prompt:
            timings["predicted_ms"] = "soon"  # type: ignore[assignment]
        self.answer({"content": f"after {prompt}", "tokens": [], "timings": timings})

    def answer(self, values: dict[str, object]) -> None:
        body = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if "--help" in sys.argv:
        print(FLAGS)
    elif "--version" in sys.argv:
        print("version: 1 (fake)")
    elif N_MAX == 5:
        print("error: failed to load the draft", flush=True)
        sys.exit(3)
    else:
        if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
            Path(sys.argv[1]).write_text(str(os.getpid()))
        ThreadingHTTPServer(("127.0.0.1", int(value("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
