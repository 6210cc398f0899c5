"""Messages about alerts by e-mail, over SMTP with TLS."""

import contextlib
import logging
import smtplib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, make_msgid, parseaddr
from enum import StrEnum
from pathlib import Path

from carpool.watch.courier import DeliveryFailed, DeliveryRefused
from carpool.watch.deadline import deadline
from carpool.watch.network_trouble import network_trouble
from carpool.watch.notice import Notice, lines, title
from carpool.watch.secret_source import AlertConfigError
from carpool.watch.severity import Severity

TIMEOUT_S = 20.0
QUIT_S = 1.0

_log = logging.getLogger("carpool.alerts")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class MailSecurity(StrEnum):
    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A Destination."""

    name: str
    host: str
    port: int
    security: MailSecurity
    sender: str
    recipients: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    min_severity: Severity = Severity.INFO
    ca_file: Path | None = None
    timeout_s: float = TIMEOUT_S
    clock: Callable[[], float] = time.time
    kind: str = field(default="email", init=False)

    def __post_init__(self) -> None:
        """Raises AlertConfigError."""
        for address in (self.sender, *self.recipients):
            if not _is_address(address):
                raise AlertConfigError(f"email {self.name}: {address!r:.100} is no address")
        if not self.recipients:
            raise AlertConfigError(f"email {self.name} has no recipients; give at least one")
        if (self.user is None) != (self.password is None):
            raise AlertConfigError(
                f"email {self.name}: user and its password go together; give both or neither"
            )
        is_local = self.host in _LOOPBACK
        if self.security is MailSecurity.NONE and not is_local:
            raise AlertConfigError(
                f'email {self.name}: security = "none" is for a server on this machine; '
                f"{self.host} needs starttls or tls"
            )

    def send(self, notice: Notice) -> None:
        smtp = self._client()
        try:
            with deadline(self.timeout_s, lambda: smtp.sock):
                smtp.connect(self.host, self.port)
                self._hand_over(smtp, self._message(notice))
            _leave(smtp)
        except smtplib.SMTPAuthenticationError as error:
            raise DeliveryFailed(
                f"{self.host} does not take the user and password ({error.smtp_code})"
            ) from None
        except smtplib.SMTPNotSupportedError:
            raise DeliveryFailed(
                f"{self.host} offers no {self.security.value}, or no way to log in"
            ) from None
        except smtplib.SMTPRecipientsRefused as error:
            code = max((code for code, _ in error.recipients.values()), default=0)
            raise _by_code(f"{self.host} takes no mail for any of the recipients", code) from None
        except smtplib.SMTPResponseException as error:
            raise _by_code(f"{self.host} did not take the mail", error.smtp_code) from None
        except smtplib.SMTPServerDisconnected:
            raise DeliveryFailed(f"{self.host} did not answer in time, or hung up") from None
        except smtplib.SMTPException:
            raise DeliveryFailed(f"{self.host} did not take the mail") from None
        except OSError as error:
            raise DeliveryFailed(network_trouble(self.host, error)) from None
        finally:
            smtp.close()

    def _client(self) -> smtplib.SMTP:
        """Not connected: its socket must be known while it does that. Certificates are checked
        against `_host`, which only connecting with the constructor would set."""
        smtp: smtplib.SMTP
        if self.security is MailSecurity.TLS:
            smtp = smtplib.SMTP_SSL(timeout=self.timeout_s, context=self._context())
        else:
            smtp = smtplib.SMTP(timeout=self.timeout_s)
        smtp._host = self.host  # type: ignore[attr-defined]
        return smtp

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_file)

    def _hand_over(self, smtp: smtplib.SMTP, message: EmailMessage) -> None:
        if self.security is MailSecurity.STARTTLS:
            smtp.starttls(context=self._context())
        if self.user is not None and self.password is not None:
            smtp.login(self.user, self.password)
        left_out = smtp.send_message(message, self.sender, self.recipients)
        if left_out:
            _log.warning(
                "%s takes no mail for %d of %d recipients of %s",
                self.host,
                len(left_out),
                len(self.recipients),
                self.name,
            )

    def _message(self, notice: Notice) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        message["Subject"] = title(notice)
        message["From"] = self.sender
        message["To"] = ", ".join(self.recipients)
        message["Date"] = formatdate(self.clock())
        message["Message-ID"] = make_msgid(domain=self.sender.rpartition("@")[2].rstrip(">"))
        message["Auto-Submitted"] = "auto-generated"
        message.set_content("\n".join(lines(notice)) + "\n", cte="quoted-printable")
        return message


def _leave(smtp: smtplib.SMTP) -> None:
    """The mail is taken, whatever becomes of this."""
    with contextlib.suppress(smtplib.SMTPException, OSError), deadline(QUIT_S, lambda: smtp.sock):
        smtp.quit()


def _is_address(text: str) -> bool:
    name, at, domain = parseaddr(text)[1].rpartition("@")
    is_plain = text.isascii() and text.isprintable() and "," not in text
    return bool(is_plain and name and at and domain and " " not in name + domain)


def _by_code(message: str, code: int) -> DeliveryFailed | DeliveryRefused:
    """4xx is for a while, 5xx for good (RFC 5321, 4.2.1)."""
    text = f"{message} ({code})"
    return DeliveryRefused(text) if code >= 500 else DeliveryFailed(text)
