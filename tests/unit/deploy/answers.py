"""A server that a story makes up: answers have a length, and are not logged."""

from http.server import BaseHTTPRequestHandler


class Answers(BaseHTTPRequestHandler):
    """Handlers of single methods are the story's."""

    def respond(self, status: int, body: bytes = b"") -> None:
        """Send the complete response."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass
