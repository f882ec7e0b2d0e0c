"""What a user can do wrong with secrets, versions, certificates and ports: a message says what to do, at both ends.

It takes long because each test starts six or more commands, and each of them is an interpreter of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flux.protocols.messages import VERSION
from flux.wire.requests import DrainRequest, JoinRequest, Unanswered, ask, command

from .commands import SECRET, Processes, controller, encrypt, said
from .waiting import wait_until


def started(processes: Processes) -> tuple[str, str]:
    """A controller that answers; how a command names it."""
    processes.start("controller")
    wait_until(lambda: processes.up() != set(), f"the controller is not up: {processes.logs()}")
    return "--controller", processes.controller


def assert_logged(processes: Processes, text: str) -> None:
    """The controller has one line about it."""

    def lines() -> list[str]:
        return [line for line in processes.logs().splitlines() if "closed a connection from 127.0.0.1:" in line]

    wait_until(
        lambda: any(text in line for line in lines()), f"the controller does not say {text!r}: {processes.logs()}"
    )
    assert sum(text in line for line in lines()) == 1


def assert_closed(processes: Processes, text: str) -> None:
    """The controller has closed the connection of a command, with one line about it."""
    line = f"closed the connection to command: {text}"
    wait_until(lambda: line in processes.logs(), f"the controller does not say {line!r}: {processes.logs()}")
    assert processes.logs().count(line) == 1


def test_another_secret(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = started(processes)
    monkeypatch.setenv("FLUX_SECRET", "guessed, and long enough")
    assert "another secret than the run there; give both the same one" in said(capsys, 1, "status", *there)
    assert_logged(processes, "a process that calls itself 'command' does not know the secret of run")


def test_a_malformed_request_closes_its_connection_and_is_logged(processes: Processes) -> None:
    started(processes)
    where, own = f"tcp:{processes.controller}", command(SECRET.encode())
    with pytest.raises(Unanswered, match=r"the connection to .* broke before the answer to DrainRequest"):
        ask(where, own, DrainRequest(site="site-1", within_s="soon"), 30.0)  # type: ignore[arg-type]
    assert_closed(processes, "DrainRequest.within_s: expected a number, got 'soon'")
    with pytest.raises(Unanswered, match=r"the connection to .* broke before the answer to JoinRequest"):
        ask(where, own, JoinRequest(role=7, name=None, flow=""), 30.0)  # type: ignore[arg-type]
    assert_closed(processes, "JoinRequest.role: expected text, got 7")
    assert processes.up() != set()


def test_another_version(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = started(processes)
    with monkeypatch.context() as newer:
        newer.setattr("flux.wire.handshake.VERSION", VERSION + 1)
        err = said(capsys, 1, "site", "job:flow", *there)
    assert f"speaks protocol version {VERSION}, this process {VERSION + 1}; run one release everywhere" in err
    assert_logged(processes, f"speaks protocol version {VERSION + 1}, this process {VERSION}")
    assert processes.up() != set(), "it answers those of its own release"


def test_certificates_that_do_not_match(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypt(monkeypatch)
    there = started(processes)
    encrypt(monkeypatch, who="theirs", trusts="ours")
    assert "the other end does not accept this process's certificate" in said(capsys, 1, "status", *there)
    assert_logged(processes, "the other end's certificate is not trusted")
    encrypt(monkeypatch, who="ours", trusts="theirs")
    err = said(capsys, 1, "status", *there)
    assert "the other end's certificate is not trusted" in err and "signed by the authority in" in err
    assert_logged(processes, "no TLS with the other end: ")
    encrypt(monkeypatch)
    assert processes.up() != set(), "it answers those that it trusts"


def test_no_tls_where_the_run_has_it(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as encrypted:
        encrypt(encrypted)
        there = started(processes)
    err = said(capsys, 1, "site", "job:flow", *there)
    assert "accepts TLS only" in err and "start it with --tls-cert, --tls-key and --tls-ca" in err
    assert_logged(processes, "it began without TLS, and this run uses it")


def test_tls_where_the_run_has_none(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = started(processes)
    encrypt(monkeypatch)
    assert "closed the connection during the TLS handshake; was it given TLS" in said(capsys, 1, "status", *there)
    assert_logged(processes, "it began with TLS, and this process was started without")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        ("", 0o600, "the file key is empty; write the run's secret into it"),
        ("tiger", 0o600, "the secret in the file key has only 5 bytes"),
        (
            "known to all of them",
            0o644,
            "others than its owner can open key, which holds the run's secret: `chmod",
        ),
    ],
    ids=["empty", "short", "open"],
)
def test_a_file_that_holds_no_good_secret(
    processes: Processes, capsys: pytest.CaptureFixture[str], content: str, mode: int, says: str
) -> None:
    Path("key").write_text(content)
    Path("key").chmod(mode)
    for call in (controller(processes.controller), ("status", "--controller", processes.controller)):
        err = said(capsys, 1, *call, "--secret-file", "key")
        assert says in err and "tiger" not in err


def test_half_of_what_tls_needs(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    call = controller(processes.controller)
    err = said(capsys, 1, *call, "--tls-cert", "mine.pem")
    assert "TLS needs a certificate, its key and the authority that signed it; give --tls-key and --tls-ca, too" in err
    err = said(capsys, 1, *call, "--tls-cert", "mine.pem", "--tls-key", "mine.key", "--tls-ca", "ca.pem")
    assert "TLS: cannot read the certificate in mine.pem: No such file" in err


def test_a_port_that_another_process_has(processes: Processes) -> None:
    """In a process of its own: a site dies of it where it has begun to live."""
    _, where = started(processes)
    site = processes.call("site-a", "site", "job:flow", "--controller", where, "--listen", where)
    assert site.wait(60) == 1
    log = (processes.directory / "site-a.log").read_text()
    assert f"cannot listen at tcp:{where}: Address already in use; end the process that listens there" in log
    assert "Traceback" not in log
