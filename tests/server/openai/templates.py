"""Chat templates of the families that write calls of tools, each as short as its form allows."""

from __future__ import annotations

TURNS = "{% for m in messages %}"
TOOLS = "{% if tools %}<|user|>Tools: {{ tools | tojson }}<|end|>{% endif %}"
PLAIN = "<|{{ m.role }}|>{{ m.content }}<|end|>"
END = "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


def _template(calls: str, plain: str = PLAIN) -> str:
    turn = "{% if m.tool_calls %}<|assistant|>{{ m.content }}" + calls + "<|end|>{% else %}" + plain + "{% endif %}"
    return TOOLS + TURNS + turn + END


EACH = "{% for call in m.tool_calls %}{% set f = call.function %}"
HERMES = _template(
    EACH
    + '{{ "\\n" if not loop.first }}<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
    + "\n</tool_call>{% endfor %}"
)
LLAMA = _template(
    '{% if m.tool_calls | length > 1 %}{{ raise_exception("one call") }}{% endif %}'
    + EACH
    + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endfor %}'
)
MISTRAL = _template(
    '[TOOL_CALLS] [{% for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception("id") }}{% endif %}'
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    '{{ ", " if not loop.last }}{% endfor %}]'
)
NAMED = _template(EACH + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}{% endfor %}")
FENCED = _template(  # takes arguments as text alone
    "<calls>" + EACH + '<call>function<sep>{{ f.name + "\\n```json\\n" + f.arguments + "\\n```" }}</call>'
    "{% endfor %}</calls>"
)
XML = _template(
    EACH + '{{ "\\n" }}<tool_call>\n<function={{ f.name }}>\n'
    "{% for key, value in f.arguments.items() %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}"
)
PAIRS = _template(
    EACH + "<tool_call>{{ f.name }}\n{% for key, value in f.arguments.items() %}"
    "<arg_key>{{ key }}</arg_key>\n<arg_value>{{ value if value is string else value | tojson }}</arg_value>\n"
    "{% endfor %}</tool_call>{% endfor %}"
)
INVOKE = _template(
    '{{ "\\n" }}<calls>{{ "\\n" }}' + EACH + '<invoke name="{{ f.name }}">{{ "\\n" }}'
    '{% for key, value in f.arguments.items() %}<parameter name="{{ key }}">'
    "{{ value if value is string else value | tojson }}"
    '</parameter>{{ "\\n" }}{% endfor %}</invoke>{{ "\\n" }}{% endfor %}</calls>'
)
LIST = _template("<|tool_call|>{{ m.tool_calls | map(attribute='function') | list | tojson }}<|/tool_call|>")
LISTED_ONLY = TOOLS + TURNS + PLAIN + END  # shows tools, but no calls
THINKING = HERMES.replace(END, "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}").replace(
    PLAIN, "<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>"
)

FAMILIES = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "named": NAMED,
    "fenced": FENCED,
    "xml": XML,
    "pairs": PAIRS,
    "invoke": INVOKE,
    "list": LIST,
    "listed-only": LISTED_ONLY,
}
END_TEXTS = ("<|end|>",)
REASONER = TURNS + "<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>" + END
