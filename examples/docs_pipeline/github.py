"""GitHub as a forge: git for the branch, the REST API for the pull request.

    GITHUB_TOKEN=… runstone pipeline run examples/docs_pipeline/pipeline.py --param remote=github:owner/name

`GITHUB_API_URL` and `GITHUB_SERVER_URL` name another server, as in GitHub's own jobs.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx2

from examples.docs_pipeline.clone import Commit
from examples.docs_pipeline.forge import Request, push
from examples.docs_pipeline.publish import Published

_TRIES: Final = 3
_TIMEOUT: Final = 30.0


class GitHubError(Exception):
    """GitHub did not do what it was asked to."""


class GitHub:
    """One repository there."""

    def __init__(self, name: str, env: Mapping[str, str] = os.environ) -> None:
        self._name = name
        self._api = env.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
        self._server = env.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/")
        self._token = env.get("GITHUB_TOKEN", "")
        if name.count("/") != 1 or not self._token:
            raise GitHubError(
                f"remote=github:{name} has to be github:OWNER/NAME, with a token in GITHUB_TOKEN that may "
                "write contents and pull requests"
            )

    @property
    def address(self) -> str:
        return f"{self._server}/{self._name}"

    def push(self, clone: Path, published: Published, on: Commit) -> None:
        """The token goes by the environment: a command line can be seen by all, and is kept in errors."""
        login = base64.b64encode(f"x-access-token:{self._token}".encode()).decode()
        header = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{self._server}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {login}",
        }
        ref = f"+{published.commit}:refs/heads/{published.branch}"
        push(clone, f"{self.address}.git", ref, env=header)

    def open(self, request: Request) -> str:
        """One request a branch: GitHub refuses a second, so a lost answer is found by asking."""
        with self._client() as client:
            found = self._open_one(client, request.head)
            if found is None:
                said = {"head": request.head, "base": request.base}
                answer = self._ask(client, "POST", "pulls", json=said | _words(request))
                found = answer.json() if answer.status_code == 201 else self._open_one(client, request.head)
                if found is None:
                    raise GitHubError(_told(answer, f"does not open a pull request for {request.head}"))
            elif {key: found.get(key) for key in _words(request)} != _words(request):
                answer = self._ask(client, "PATCH", f"pulls/{found['number']}", json=_words(request))
                if answer.status_code != 200:
                    raise GitHubError(_told(answer, f"does not change pull request {found['number']}"))
            return str(found["html_url"])

    def _open_one(self, client: httpx2.Client, head: str) -> dict[str, Any] | None:
        owner = self._name.partition("/")[0]
        answer = self._ask(client, "GET", "pulls", params={"head": f"{owner}:{head}", "state": "open"})
        if answer.status_code != 200:
            raise GitHubError(_told(answer, "does not list pull requests"))
        found: list[dict[str, Any]] = answer.json()
        return found[0] if found else None

    def _client(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=f"{self._api}/repos/{self._name}/",
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token}",
                "X-GitHub-Api-Version": "2022-11-28",
            },
            timeout=_TIMEOUT,
        )

    def _ask(self, client: httpx2.Client, method: str, path: str, **more: Any) -> httpx2.Response:
        """Asks again when GitHub is out of order or does not answer: nothing here happens twice."""
        for left in reversed(range(_TRIES)):
            try:
                answer = client.request(method, path, **more)
            except httpx2.TransportError as error:
                if not left:
                    raise GitHubError(
                        f"{self._api} does not answer: {error!r}. Run this again later"
                    ) from error
                continue
            if answer.status_code < 500 or not left:
                return answer
        raise AssertionError("the last try returns or raises")


def _words(request: Request) -> dict[str, str]:
    return {"title": request.title, "body": request.body}


def _told(answer: httpx2.Response, problem: str) -> str:
    hint = " Is the token allowed to?" if answer.status_code in (401, 403, 404) else ""
    return f"GitHub {problem}: {answer.status_code} {answer.text[:300]}{hint}"
