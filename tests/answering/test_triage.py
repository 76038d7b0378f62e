"""Chatter is told from questions without a model, and what may be a question is never taken for chatter."""

from __future__ import annotations

import pytest

from intern.answering.triage import is_chatter
from tests.sample.cases import CASES


@pytest.mark.parametrize(
    "said",
    [
        "thanks!",
        "ah brilliant, thank you so much, all green again",
        "Danke dir, hat geklappt!",
        "merci beaucoup",
        "спасибо, всё работает",
        "谢谢",
        "ありがとうございます！",
        "👍 !!",
        "good morning everyone",
        "lol",
        "it works now",
    ],
)
def test_thanks_and_greetings_are_chatter(said: str) -> None:
    assert is_chatter(said)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "thanks in advance, the relay says 403",
        "thanks, but now it says permission denied",
        "hi, moving a relay to another host",
        "thank you! where is that documented?",
        "Danke, aber jetzt geht es nicht mehr",
        "gracias, pero no funciona",
        "it works now on one host, the other one shows an error",
        "спасибо, но не работает",
        "спасибо, а можно на windows",
        "ok?",
        "ok？",
        "Thanks. Is there a way to export to CSV",
        "cheers, can I do the same on windows",
        "danke, kann man das auch per API",
        "merci, est-ce possible sur windows",
        "gracias, se puede en windows",
        "obrigado, dá para usar no windows",
        "grazie, si può fare su windows",
        "bedankt, kan dat ook op windows",
        "Dziękuję, ale nadal nie działa",
        "kiitos, mutta ei toimi",
        "teşekkürler ama hala çalışmıyor",
        "谢谢，但是还是不行",
        "ありがとう、でもまだ動きません",
        "감사합니다 근데 안 돼요",
    ],
)
def test_what_may_be_a_question_is_not(said: str) -> None:
    assert not is_chatter(said)


def test_no_question_of_the_sixty_cases_is_chatter() -> None:
    assert [case.name for case in CASES if case.kind != "chatter" and is_chatter(case.text)] == []
