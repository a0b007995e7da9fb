from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sluice.config import Config
from sluice.errors import RequestError, SystemFault
from sluice.targets.engine import EngineTarget
from sluice.targets.server import (
    Completion,
    ServerDrafts,
    ServerTarget,
    draft_flags,
    start_server,
)
from sluice.targets.server_process import free_port

ASKED = Completion("import os\n", 4)
TIMINGS = {"prompt_n": 3, "prompt_ms": 1.5, "predicted_n": 4, "predicted_ms": 8.0}
ANSWER = {"content": "x = 1", "tokens": [1, 2, 3, 4], "timings": TIMINGS, "stop_type": "limit"}
DRAFTED = ANSWER | {"timings": TIMINGS | {"draft_n": 6, "draft_n_accepted": 2}}

Handle = Callable[[BaseHTTPRequestHandler], None]


class Double:
    """An HTTP server that answers what a real one would not on demand; see ``ways``."""

    def __init__(self) -> None:
        self.ways: dict[str, Handle] = {}
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                sent = json.loads(self.rfile.read(size)) if size else {}
                double.asked.append((self.path, sent, dict(self.headers)))
                double.ways.get(self.path, answer(404, b"{}"))(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.released = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        self.released.wait(30)

    def trickle(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not self.released.wait(0.05):
            handler.wfile.write(b" ")


def answer(status: int, content: bytes) -> Handle:
    def handle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return handle


def completion(of: dict[str, Any]) -> Handle:
    return answer(200, json.dumps(of).encode())


def cut_short(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"content": ')


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


@pytest.fixture
def double() -> Iterator[Double]:
    one = Double()
    yield one
    one.close()


def test_a_request_says_all_that_an_answer_depends_on(double: Double) -> None:
    double.ways["/completion"] = completion(ANSWER)
    asked = Completion("p", 7, temperature=0.5, top_k=0, top_p=0.25, seed=9)
    reply = ServerTarget(double.url + "/", api_key="secret").complete(asked)
    assert (reply.text, reply.tokens, reply.stop) == ("x = 1", (1, 2, 3, 4), "limit")
    assert (reply.drafted, reply.verify_steps, reply.accepted_by_position) == (0, 0, ())
    path, sent, headers = double.asked[-1]
    assert path == "/completion"
    assert sent == {
        "prompt": "p",
        "n_predict": 7,
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 0.25,
        "min_p": 0.0,
        "seed": 9,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": False,
    }
    assert headers["Authorization"] == "Bearer secret"


def test_the_server_puts_a_prompt_into_the_model_s_chat_template(double: Double) -> None:
    target = ServerTarget(double.url)
    double.ways["/apply-template"] = answer(200, b'{"prompt": "<user>hi<assistant>"}')
    assert target.chat_prompt("hi", thinking=True) == "<user>hi<assistant>"
    path, sent, _ = double.asked[-1]
    assert path == "/apply-template"
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert sent["chat_template_kwargs"] == {"enable_thinking": True}
    double.ways["/apply-template"] = answer(200, b'{"prompt": [1]}')
    with pytest.raises(SystemFault, match=r"127\.0\.0\.1:\d+: its answer has no prompt: "):
        target.chat_prompt("hi")


def counters(*values: int) -> bytes:
    names = ("draft_tokens", "accepted_tokens", "drafts")
    lines = [f"llamacpp:spec_decode_num_{n}_total {v}" for n, v in zip(names, values, strict=True)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("after", "steps"),
    [
        (counters(16, 7, 5), 3),
        (counters(17, 7, 6), None),  # another request was counted, too
        (b"", None),
    ],
    ids=["ours", "shared", "gone"],
)
def test_the_counters_give_the_steps_where_they_are_this_request_s(
    double: Double, after: bytes, steps: int | None
) -> None:
    double.ways["/metrics"] = answer(200, counters(10, 5, 2))

    def complete(handler: BaseHTTPRequestHandler) -> None:
        double.ways["/metrics"] = answer(200, after)
        completion(DRAFTED)(handler)

    double.ways["/completion"] = complete
    reply = ServerTarget(double.url).complete(ASKED)
    assert (reply.drafted, reply.accepted, reply.verify_steps) == (6, 2, steps)
    assert (reply.mean_len, reply.log_line) == (None, "")


def test_a_server_without_counters_is_asked_for_them_once(double: Double) -> None:
    double.ways["/completion"] = completion(DRAFTED)
    target = ServerTarget(double.url)
    assert [target.complete(ASKED).verify_steps for _ in range(3)] == [None] * 3
    assert [path for path, *_ in double.asked].count("/metrics") == 1


@pytest.mark.parametrize(
    ("handle", "words"),
    [
        (answer(200, b"hello"), ": its answer is no JSON: 'hello'"),
        (answer(200, b'{"content": "x"}'), ": its answer has no timings: "),
        (
            completion(ANSWER | {"timings": TIMINGS | {"predicted_ms": -1}}),
            ": its timings are nonsense: predicted_ms is -1, not a time",
        ),
        (
            answer(400, b'{"error": {"message": "the prompt is too long"}}'),
            ": answered 400: the prompt is too long",
        ),
        (answer(502, b"Bad Gateway"), ": answered 502: 'Bad Gateway'"),
        (cut_short, ": broke off its answer to /completion: IncompleteRead(12 bytes read, 988"),
        (
            hang_up,
            ": broke off its answer to /completion: Remote end closed connection without response",
        ),
    ],
)
def test_an_answer_that_is_none_is_a_fault_of_one_line(
    double: Double, handle: Handle, words: str
) -> None:
    double.ways["/completion"] = handle
    with pytest.raises(SystemFault) as fault:
        ServerTarget(double.url).complete(ASKED)
    assert str(fault.value).startswith(double.url + words)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("way", ["hang", "trickle"])
def test_a_server_that_does_not_finish_is_a_fault(double: Double, way: str) -> None:
    double.ways["/completion"] = getattr(double, way)
    with pytest.raises(SystemFault, match=r": no answer to /completion after 0\.3 s$"):
        ServerTarget(double.url, timeout_s=0.3).complete(ASKED)


def test_a_server_that_is_not_there_is_a_fault() -> None:
    with pytest.raises(SystemFault, match=r"127\.0\.0\.1:\d+: cannot be reached: Connection ref"):
        ServerTarget(f"http://127.0.0.1:{free_port()}").complete(ASKED)


def test_a_server_that_is_there_is_waited_for_and_says_what_it_is(double: Double) -> None:
    loads = iter([503, 503, 200])
    double.ways["/health"] = lambda handler: answer(next(loads), b"{}")(handler)
    double.ways["/props"] = answer(200, b'{"build_info": "b1-abc"}')
    target = ServerTarget(double.url)
    target.wait_until_ready(30)
    assert next(loads, None) is None
    assert target.props() == {"build_info": "b1-abc"}
    double.ways["/health"] = answer(503, b"{}")
    with pytest.raises(SystemFault, match=r": not ready after 0\.2 s: answered 503$"):
        target.wait_until_ready(0.2)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://x:y", "http://a b"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match=r"--server: .*: no URL; as in http://127"):
        ServerTarget(url)


NEW = """
--port N
--spec-type none,draft-simple,draft-mtp
--spec-draft-n-max N
--spec-draft-n-min N
--spec-draft-p-min, --draft-p-min P
--draft, --draft-n, --draft-max N   the argument has been removed
--draft-min, --draft-n-min N        the argument has been removed
"""
OLD = """
--port N
--spec-type [none|mtp|ngram-cache]
--draft, --draft-n, --draft-max N
--draft-min, --draft-n-min N
--draft-p-min P
"""
NEW_FLAGS = "--spec-type draft-mtp --spec-draft-n-max 4 --spec-draft-n-min 1 --spec-draft-p-min 0.7"
OLD_FLAGS = "--spec-type mtp --draft-max 4 --draft-min 1 --draft-p-min 0.7"


@pytest.mark.parametrize(
    ("help_text", "expected"),
    [(NEW, NEW_FLAGS), (OLD, OLD_FLAGS), ("", NEW_FLAGS)],
    ids=["new", "old", "unknown"],
)
def test_drafts_are_spelled_as_the_server_knows_them(help_text: str, expected: str) -> None:
    assert draft_flags(help_text, ServerDrafts(4, n_min=1, p_min=0.7)) == expected.split()
    assert draft_flags(help_text, None) == ["--spec-type", "none"]


def test_no_draft_at_all_is_no_number_of_tokens() -> None:
    with pytest.raises(RequestError, match=r"n_max 0: a draft has 1 token or more"):
        ServerDrafts(0)


def test_a_server_of_before_mtp_cannot_draft() -> None:
    assert draft_flags("--port N --draft-max N", None) == []
    with pytest.raises(SystemFault, match=r"has no --spec-type, so no MTP; use a newer llama\.cpp"):
        draft_flags("--port N --draft-max N", ServerDrafts(3))


# A server of our own making: --help, then what its first argument says.
SCRIPT = """
import http.server, os, sys, time
if "--help" in sys.argv:
    sys.exit("--port N --spec-type none,draft-mtp --spec-draft-n-max N")
port = int(sys.argv[sys.argv.index("--port") + 1])
how = sys.argv[1]
if how == "no model":
    print("error: failed to open no.gguf", flush=True)
    sys.exit(1)
if how == "slow":
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        print("GGML_ASSERT(n_tokens > 0) failed", flush=True)
        if how == "silent":
            time.sleep(600)
        os.kill(os.getpid(), 6)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], list[str]]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return lambda how: [sys.executable, str(script), how]


PYTHON = Path(sys.executable).name


def test_a_server_that_does_not_come_up_is_a_fault_with_its_last_words(
    command: Callable[[str], list[str]],
) -> None:
    with pytest.raises(SystemFault) as fault:
        start_server(command("no model"), ServerDrafts(3))
    assert str(fault.value) == (
        f"{PYTHON}: did not become ready: ended with exit code 1;"
        " its last words: error: failed to open no.gguf"
    )
    with pytest.raises(
        SystemFault, match=r"not ready after 1 s: .*; it said nothing: run its command"
    ):
        start_server(command("slow"), ServerDrafts(3), ready_s=1, grace_s=0.2)


def test_a_server_that_dies_under_a_request_is_a_fault_and_the_next_one_starts(
    command: Callable[[str], list[str]],
) -> None:
    with start_server(command("dies"), ServerDrafts(3), grace_s=0.2) as server:
        for _ in range(2):
            with pytest.raises(SystemFault) as fault:
                server.complete(ASKED)
            words = "was killed by SIGABRT; its last words: GGML_ASSERT(n_tokens > 0) failed"
            assert str(fault.value).startswith(f"{PYTHON}: ")
            assert str(fault.value).endswith(f": {words}")
    with (
        start_server(command("silent"), grace_s=0.2, timeout_s=0.5) as server,
        pytest.raises(SystemFault, match=r"no answer to /completion after 0\.5 s; its last words"),
    ):
        server.complete(ASKED)


def test_a_server_of_ours_drafts_as_it_is_told(llama_server: Path, config: Config) -> None:
    """On the bundled model; the counts of its answer, its log and its counters are the same."""
    prompt = "import os\n\n\ndef main(argv):\n    for name in argv:\n        print("
    line = [str(llama_server), "-m", config.model, "-t", "1", "-c", "512", "-np", "1"]
    line += ["--no-repack", "--no-warmup"]
    asked = Completion(prompt, 48)
    with start_server(line, ServerDrafts(3), ready_s=120, timeout_s=120) as server:
        replies = [server.complete(asked) for _ in range(2)]
        assert str(server.props()["model_path"]) == config.model
        sampled = server.complete(Completion(prompt, 16, temperature=1.0, top_k=0, top_p=1.0))
    first = replies[0]
    assert [r.text for r in replies] == [first.text] * 2
    assert first.predicted_n == len(first.tokens) == 48
    assert first.drafted > first.accepted > 0
    assert first.verify_steps is not None
    assert first.accepted_by_position is not None
    assert sum(first.accepted_by_position) == first.accepted
    assert first.undrafted_steps == 47 - first.accepted - first.verify_steps
    assert first.mean_len == round(1 + first.accepted / first.verify_steps, 2)
    assert f"{first.accepted} accepted" in first.log_line
    assert first.cached_n == replies[1].cached_n == 0
    assert sampled.predicted_n == 16

    with start_server(line, ready_s=120, timeout_s=120) as server:
        plain = server.complete(asked)
    assert (plain.drafted, plain.verify_steps, plain.log_line) == (0, 0, "")
    ours = EngineTarget().run(config.replace(n=48), prompt).evidence
    assert plain.text == ours.text
