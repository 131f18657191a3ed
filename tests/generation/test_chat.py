"""Chat templates: prompts as transformers writes them, and templates that are wrong or hostile.

expected_chats.json was written by transformers (write_expected_chats.py).
"""

from __future__ import annotations

import json
import re
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generation.folders import write_json, write_tokenizer
from generation.real_tokenizers import REAL, open_real_tokenizer
from generation.write_expected_chats import CONVERSATIONS, DATE, EXPECTED, shorten

from weft.errors import InputError, InvalidModelError, UnsupportedModelError
from weft.generation import template_sandbox
from weft.generation.chat import ChatTemplates
from weft.generation.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


def render(template: str, messages: list[dict[str, Any]] = MESSAGES, **variables: Any) -> str:
    templates = ChatTemplates({"default": template}, {"bos_token": "<s>"}, Path("folder/tokenizer_config.json"))
    return templates.render(messages, variables=variables)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("model", REAL)
def test_prompts_are_those_of_transformers(model: str, conversation: str) -> None:
    tokenizer = open_real_tokenizer(model)
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))[model][conversation]
    arguments = {"date_string": DATE, **CONVERSATIONS[conversation]}
    if expected is None:
        with pytest.raises(
            InputError, match="the chat template rejects the messages: Conversation roles must alternate"
        ):
            tokenizer.chat(**arguments)
    else:
        assert shorten(tokenizer.chat(**arguments), arguments) == expected


def test_sources_of_templates(tmp_path: Path) -> None:
    def chat(**arguments: Any) -> str:
        return Tokenizer.open(tmp_path).chat(MESSAGES, **arguments)

    write_tokenizer(tmp_path)
    assert chat() == "<s>[user] hi</s>\n[assistant] "
    assert chat(add_generation_prompt=False) == "<s>[user] hi</s>\n"
    templates = [
        {"name": "default", "template": "first"},
        {"name": "tool_use", "template": "second {{ tools | length }}"},
    ]
    write_tokenizer(tmp_path, chat_template=templates)
    assert (chat(), chat(tools=[{}]), chat(template="tool_use", tools=[])) == ("first", "second 1", "second 0")
    with pytest.raises(InputError, match=r"no chat template 'rag'; there are default, tool_use"):
        chat(template="rag")
    write_json(tmp_path / "chat_template.json", {"chat_template": "from JSON"})
    assert chat() == "from JSON"
    (tmp_path / "chat_template.jinja").write_text("from jinja", encoding="utf-8")
    assert chat() == "from jinja"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("{{ documents[0].text }}", encoding="utf-8")
    assert chat(template="rag", documents=[{"text": "a document"}]) == "a document"


@pytest.mark.parametrize("template", [3, ["x"], [{"name": "x"}], {"default": 3}], ids=str)
def test_wrong_types_of_templates(tmp_path: Path, template: object) -> None:
    write_tokenizer(tmp_path, chat_template=template)
    with pytest.raises(InvalidModelError, match=r"tokenizer_config.json: chat_template"):
        Tokenizer.open(tmp_path)


def test_no_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, chat_template=None)
    with pytest.raises(
        UnsupportedModelError, match=r"the model has no chat template\n  hint: format the prompt yourself"
    ):
        Tokenizer.open(tmp_path).chat(MESSAGES)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ {'b': '<ä>&', 'a': [1, none]} | tojson }}", '{"b": "<ä>&", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        (
            "{% for i in range(9) %}{% if i==2 %}{% continue %}{% elif i>3 %}{% break %}{% endif %}{{i}}{% endfor %}",
            "013",
        ),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hi!"),
        ("{% set ns = namespace(n=0) %}{% for i in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ bos_token ~ 1 ~ none ~ messages[0]['role'] ~ missing }}", "<s>1Noneuser"),
        ("{{ '%05.1f|%s' % (1.25, 'x') }}{{ '{:>4}{{}}'.format('y') }}", "001.2|x   y{}"),
        (
            "{{ ['a', 'b'] | join(', ') }}{{ ' '.join(messages[0].keys()) }}{{ 'a-b'.split('-')[-1] }}",
            "a, brole contentb",
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}", "['hi']"),
        (
            "{% macro f(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}{{ f(1) }}{% call f(2) %}c{% endcall %}",
            "<1><2c>",
        ),
        ("{{ dict(a=1).items() | list }}{{ 'ab' | replace('a', 'xx') | indent(2) | upper }}", "[('a', 1)]XXB"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}", "123"),
        ("{{ messages[0] is mapping }}{{ 3 in [1, 2] }}{{ 'x' if 2 ** 3 == 8 }}", "TrueFalsex"),
    ],
    ids=lambda case: re.sub(r"\W+", "-", case)[:24],
)
def test_what_templates_can_use(template: str, expected: str) -> None:
    """Expected texts are those of transformers 5.23 for the same template and messages."""
    assert render(template) == expected


def test_time_and_variables() -> None:
    assert render("{{ strftime_now('%Y') }}") in (str(datetime.now().year), str(datetime.now().year - 1))
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ (5).to_bytes(10 ** 10, 'big') }}",
        "{{ 'a'.encode() * 10 ** 10 }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        "{% for i in range(99999) %}" + "text " * 1000 + "{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 9 ** 999999999 }}",
        "{% set ns = namespace(s=7) %}{% for i in range(60) %}{% set ns.s = ns.s * ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s | replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
        "{{ (['x' * 1000000] * 60000) | join }}",
        "{{ ''.join(['x' * 1000000] * 60000) }}",
        "{{ 'a'.center(10 ** 10) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ 'a' | indent(10000000000, true) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '%(a)10000000000d' | format(a=1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10 ** 10) }}",
        "{{ 'a\\tb'.expandtabs(10 ** 10) }}",
        "{{ 5 | round(1000000000, 'ceil') }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ strftime_now('%1000000000d') }}",
    ],
    ids=lambda template: re.sub(r"\W+", "-", template)[:60],
)
def test_hostile_templates_are_stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "BUDGET", 1 << 22)  # a sixteenth, to be quick
    with pytest.raises(InvalidModelError, match=r"tokenizer_config.json: the chat template 'default' was stopped"):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ ''['__class__'] }}",
        "{{ raise_exception.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ self.__init__ }}",
        "{{ environment }}{{ loop }}{{ joiner().__class__ }}",
        "{{ dict(a=1).__class__ }}{{ namespace(a=1)._Namespace__attrs }}",
    ],
)
def test_internals_are_undefined(template: str) -> None:
    assert render(template) == ""


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for x in messages %}", r"is wrong in line 1: Unexpected end of template"),
        ("\n{{ 1 | nofilter }}", r"is wrong in line 2: No filter named 'nofilter'"),
    ],
)
def test_wrong_templates(template: str, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        render(template)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no ' + messages[0].role) }}", r"the chat template rejects the messages: no user"),
        ("{{ messages[7].role }}", r"fails on the messages: UndefinedError"),
        ("{{ 1 / 0 }}", r"fails on the messages: ZeroDivisionError"),
        ("{% include 'other' %}", r"fails on the messages: TypeError: no loader"),
        ("{{ messages + 1 }}", r"fails on the messages: TypeError"),
    ],
)
def test_templates_that_fail(template: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(template)


def test_wrong_messages() -> None:
    for messages in ("hi", {"role": "user"}, 3, ["hi"], None):
        with pytest.raises(InputError, match=r"pass .*\"role\": \"user\""):
            render("", messages)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"array.*, which is not plain data"):
        render("", [{"role": "user", "content": np.zeros(2)}])
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InputError, match=r"nest more than 100 deep"):
        render("", [{"role": "user", "content": loop}])


def test_templates_render_in_several_threads() -> None:
    templates = ChatTemplates({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {}, Path("file"))
    results: dict[int, str] = {}

    def render_many(number: int) -> None:
        messages = [{"role": "user", "content": f"{number} "}] * 200
        results[number] = "".join(templates.render(messages) for _ in range(20))

    threads = [threading.Thread(target=render_many, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number} " * 4000 for number in range(4)}
