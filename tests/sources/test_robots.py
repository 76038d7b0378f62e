"""robots.txt by the standard."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from intern.sources.fetching import NOBODY, RobotsRules


@pytest.mark.parametrize(
    ("text", "target", "allowed"),
    [
        ("", "/a", True),
        ("User-agent: *\nDisallow: /", "/a", False),
        ("User-agent: *\nDisallow:", "/a", True),
        ("User-agent: *\nAllow: /\nDisallow: /private", "/private/a", False),
        ("User-agent: *\nDisallow: /docs\nAllow: /docs/open", "/docs/open/a", True),
        ("User-agent: *\nDisallow: /a\nAllow: /a", "/a", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: intern\nAllow: /", "/a", True),
        ("User-agent: intern/2.0\nDisallow: /a\n\nUser-agent: *\nAllow: /", "/a", False),
        ("User-agent: other\nUser-agent: INTERN\nDisallow: /a", "/a", False),
        ("User-agent: other\nDisallow: /", "/a", True),
        ("User-agent: internet\nDisallow: /", "/a", True),
        ("User-agent: *\nDisallow: /*.pdf$", "/a/b.pdf", False),
        ("User-agent: *\nDisallow: /*.pdf$", "/a/b.pdf?x", True),
        ("User-agent: *\nDisallow: /*/print", "/docs/print", False),
        ("User-agent: *\nDisallow: /a$", "/a", False),
        ("User-agent: *\nDisallow: /a$", "/ab", True),
        ("User-agent: *\nDisallow: /?q=", "/?q=1", False),
        ("User-agent: *\nDisallow: /%7Eme", "/~me/a", False),
        ("user-agent:*\r\ndisallow:/a # no", "/a", False),
        ("Disallow: /", "/a", True),
        ("<html>no rules</html>", "/a", True),
    ],
)
def test_the_longest_rule_of_our_group_decides(text: str, target: str, *, allowed: bool) -> None:
    assert RobotsRules.parse(text).allows(target) is allowed


def test_a_wanted_pause_is_bounded() -> None:
    assert RobotsRules.parse("User-agent: *\nCrawl-delay: 2").delay == 2
    for wanted, given_ in (("86400", 5.0), ("-1", 0.0), ("nan", 0.0), ("soon", 0.0)):
        assert RobotsRules.parse(f"User-agent: *\nCrawl-delay: {wanted}").delay == given_


def test_a_site_that_cannot_say_allows_nothing() -> None:
    assert not NOBODY.allows("/")


def test_hostile_rules_cost_no_more_than_their_length() -> None:
    rules = RobotsRules.parse("User-agent: *\n" + f"Disallow: /{'a*' * 1000}b$\n" * 200)
    started = time.process_time()
    assert rules.allows("/" + "a" * 2000)
    assert time.process_time() - started < 2


def test_thousands_of_agents_before_thousands_of_rules_cost_no_more_than_their_length() -> None:
    agents = "".join(f"User-agent: a{n}\n" for n in range(4000))
    rules = "".join(f"Disallow: /{n}\n" for n in range(4000))
    started = time.process_time()
    assert RobotsRules.parse(agents + rules).allows("/1")
    assert not RobotsRules.parse(f"{agents}User-agent: intern\n{rules}").allows("/1")
    assert time.process_time() - started < 1


@given(st.text(max_size=300), st.text(max_size=50))
def test_any_text_makes_rules(text: str, path: str) -> None:
    RobotsRules.parse(text).allows(f"/{path}")
    assert RobotsRules.parse("User-agent: *\n" + text + "\nUser-agent: intern\nDisallow: /").allows("/") is False
