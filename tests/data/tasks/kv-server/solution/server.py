from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STORE: dict[str, bytes] = {}


class Handler(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        STORE[self.path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(204, b"")

    def do_GET(self) -> None:
        value = STORE.get(self.path)
        self.answer(404 if value is None else 200, value or b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", 8765), Handler).serve_forever()
