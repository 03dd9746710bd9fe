"""`foldwise serve` for tests. Needs Python's standard library only."""
import http.client
import json
import re
import signal
import subprocess
import urllib.parse

RUN = {"model": "qwen3-30b-a3b", "system": "h100-sxm-80gb", "num_gpus": 16, "seq_len": 4096, "global_batch": 64, "micro_batch": 1,
       "precision": "bf16", "tp": 1, "pp": 2, "ep": 8, "dispatcher": "alltoall", "sharding": "ddp-distopt"}


class Answer:
    def __init__(self, response: http.client.HTTPResponse):
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)


class Server:
    """A running `foldwise serve`; `end` interrupts it and returns its exit code."""

    def __init__(self, foldwise: str, *arguments: str, cwd=None):
        self._process = subprocess.Popen([foldwise, "serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
        self.url = self._process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", self.url)
        assert found, self.url
        self.port, self.token = int(found.group(1)), found.group(2)
        self.pid = self._process.pid

    def ask(self, method: str, path: str, body=None, headers=None, token=True) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        sent = {"Authorization": f"Bearer {self.token}"} if token else {}
        if method == "POST":
            sent["Content-Type"] = "application/json"
        sent.update(headers or {})
        text = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        try:
            connection.request(method, path, text, {name: value for name, value in sent.items() if value is not None})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def post(self, path: str, body, **how) -> Answer:
        return self.ask("POST", path, body, **how)

    def page(self, state: dict) -> str:
        """The address of a state."""
        return f"{self.url}#{urllib.parse.quote(json.dumps(state))}"

    def end(self, how=signal.SIGINT) -> int:
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.communicate(timeout=100)
        return self._process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
