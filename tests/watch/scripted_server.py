"""A server on a port of this machine that does with each connection what a script says."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

PATIENCE_S = 20.0


class Talk:
    """One connection, as the script sees it."""

    def __init__(self, connection: socket.socket, stopped: threading.Event) -> None:
        self.connection = connection
        self.stopped = stopped
        self.lines = connection.makefile("rb")

    def say(self, text: str) -> None:
        self.connection.sendall(text.encode())

    def line(self) -> str:
        return self.lines.readline().decode().rstrip("\r\n")

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.lines.close()
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.lines = self.connection.makefile("rb")

    def hang(self) -> None:
        """Says nothing more until the server stops or the client hangs up."""
        self.connection.settimeout(0.02)
        while not self.stopped.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def drip(self, piece: str) -> None:
        """A piece every now and then, for ever: no read ever takes long."""
        with contextlib.suppress(OSError):
            while not self.stopped.wait(0.02):
                self.say(piece)


@dataclass
class Server:
    port: int
    failures: list[BaseException] = field(default_factory=list)


@contextlib.contextmanager
def scripted(script: Callable[[Talk], None], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    stopped = threading.Event()
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    server = Server(listener.getsockname()[1])

    def handle(connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(PATIENCE_S)
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                talk = Talk(connection, stopped)
                try:
                    script(talk)
                finally:
                    talk.lines.close()
                    talk.connection.close()
        except OSError as error:
            server.failures.append(error)

    def accept() -> None:
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=handle, args=(connection,))
            thread.start()
            threads.append(thread)

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield server
    finally:
        stopped.set()
        acceptor.join()
        for thread in threads:
            thread.join()
        listener.close()


@dataclass
class Post:
    """A request as it came."""

    head: str
    body: bytes


class Posts:
    """A script: reads POSTs and gives the answers in turn, the last one again and again."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.seen: list[Post] = []

    def __call__(self, talk: Talk) -> None:
        head = []
        while line := talk.line():
            head.append(line)
        length = next(int(x.split(":")[1]) for x in head if x.lower().startswith("content-length"))
        self.seen.append(Post("\n".join(head), talk.lines.read(length)))
        talk.say(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


def http_answer(status: int, body: str = "", headers: Sequence[str] = ()) -> str:
    head = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(head) + "\r\n\r\n" + body


class SmtpServer:
    """A script: takes mail as its options say. `refusals` maps a command to the answer it gets."""

    def __init__(
        self,
        *,
        starttls: ssl.SSLContext | None = None,
        refusals: dict[str, str] | None = None,
        hangs_at: str | None = None,
        has_auth: bool = True,
    ) -> None:
        self.starttls = starttls
        self.refusals = refusals or {}
        self.hangs_at = hangs_at
        self.has_auth = has_auth
        self.mails: list[str] = []
        self.commands: list[str] = []

    def __call__(self, talk: Talk) -> None:
        if self.hangs_at == "GREETING":
            talk.hang()
            return
        if self.hangs_at == "DRIP":
            talk.drip("220-still here\r\n")
            return
        talk.say("220 mail.test\r\n")
        while line := talk.line():
            command = line.split(":")[0].split(" ")[0].upper()
            self.commands.append(line)
            if self.hangs_at == command:
                talk.hang()
                return
            if command in self.refusals:
                talk.say(f"{self.refusals[command]}\r\n")
                continue
            self._answer(talk, command)
            if command == "QUIT":
                return

    def _answer(self, talk: Talk, command: str) -> None:
        match command:
            case "EHLO":
                offers = ["mail.test"]
                if self.starttls is not None:
                    offers.append("STARTTLS")
                if self.has_auth:
                    offers.append("AUTH PLAIN")
                *first, last = offers
                talk.say("".join(f"250-{each}\r\n" for each in first) + f"250 {last}\r\n")
            case "STARTTLS" if self.starttls is not None:
                talk.say("220 go on\r\n")
                talk.start_tls(self.starttls)
            case "AUTH":
                talk.say("235 welcome\r\n")
            case "DATA":
                talk.say("354 go on\r\n")
                lines = []
                while (line := talk.line()) != ".":
                    lines.append(line)
                self.mails.append("\n".join(lines))
                talk.say("250 taken\r\n")
            case "QUIT":
                talk.say("221 bye\r\n")
            case _:
                talk.say("250 fine\r\n")
