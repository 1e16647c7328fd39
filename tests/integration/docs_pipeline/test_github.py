"""The GitHub adapter against a stand-in on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from examples.docs_pipeline.forge import Request
from examples.docs_pipeline.github import GitHub, GitHubError
from tests.servers.github import Server, serving

TOKEN = "t-1234"
REQUEST = Request(head="docs/api-1", base="main", commit="c" * 40, title="Document 1", body="7 pages")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(TOKEN) as server:
        yield server


def forge(url: str, token: str = TOKEN) -> GitHub:
    return GitHub("acme/shop", {"GITHUB_API_URL": url, "GITHUB_TOKEN": token})


def test_a_request_is_opened_once(server: Server) -> None:
    assert forge(server.url).open(REQUEST) == forge(server.url).open(REQUEST) == "https://github.test/pull/1"
    assert server.asked == ["GET", "POST", "GET"]
    assert server.pulls[0]["title"] == "Document 1"


def test_an_open_one_is_brought_up_to_date(server: Server) -> None:
    forge(server.url).open(REQUEST)
    other = Request(head=REQUEST.head, base="main", commit="d" * 40, title="Document 1", body="8 pages")
    assert forge(server.url).open(other) == "https://github.test/pull/1"
    assert [pull["body"] for pull in server.pulls] == ["8 pages"]


def test_somebody_else_opens_it_at_the_same_moment(server: Server) -> None:
    """The answer to the question is out of date when the request is made."""
    known = server.answer

    def answer(method: str, address: str, body: dict[str, object]) -> tuple[int, object]:
        found = known(method, address, body)
        if len(server.asked) == 1:
            known("POST", "/repos/acme/shop/pulls", {"head": REQUEST.head, "title": "", "body": ""})
        return found

    server.answer = answer  # type: ignore[method-assign]
    assert forge(server.url).open(REQUEST) == "https://github.test/pull/1"
    assert server.asked == ["GET", "POST", "GET"]


@pytest.mark.parametrize("fault", ["fail", "lose"])
@pytest.mark.parametrize("at", range(2))
def test_faults_on_the_way(server: Server, fault: str, at: int) -> None:
    server.faults = [*[""] * at, fault, fault]
    assert forge(server.url).open(REQUEST) == "https://github.test/pull/1"
    assert len(server.pulls) == 1


def test_one_that_stays_out_of_order(server: Server) -> None:
    server.faults = ["fail"] * 3
    with pytest.raises(GitHubError, match="does not list pull requests: 502"):
        forge(server.url).open(REQUEST)


def test_a_token_that_it_does_not_take(server: Server) -> None:
    with pytest.raises(GitHubError, match=r"401 .*Bad credentials.* Is the token allowed to") as error:
        forge(server.url, "secret-5678").open(REQUEST)
    assert "secret-5678" not in str(error.value)


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(GitHubError, match="does not answer"):
        forge(f"http://127.0.0.1:{port}").open(REQUEST)


@pytest.mark.parametrize(("name", "token"), [("shop", TOKEN), ("a/b/c", TOKEN), ("acme/shop", "")])
def test_what_it_needs(name: str, token: str) -> None:
    with pytest.raises(GitHubError, match="github:OWNER/NAME"):
        GitHub(name, {"GITHUB_TOKEN": token})
