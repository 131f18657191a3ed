"""Chat templates: messages in, the prompt that a model was trained with out.

Templates come from chat_template.jinja, chat_template.json or tokenizer_config.json, and run in a sandbox
(`template_sandbox.py`), because they come with the model and are not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, InvalidModelError, UnsupportedModelError, short_repr
from weft.generation.config_files import Config, read_optional_config, read_text_file
from weft.generation.tokenizer_files import missing_package_error

if TYPE_CHECKING:
    from jinja2 import Template

    from weft.generation.template_sandbox import TemplateEnvironment

DEFAULT, TOOLS = "default", "tool_use"
MAX_DEPTH = 100  # of lists and mappings in messages


class ChatTemplates:
    """The chat templates of a model, by name; most have one, `default`."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str], file: Path) -> None:
        self.sources = sources
        self._tokens = tokens
        self._file = str(file)
        self._environment: TemplateEnvironment | None = None
        self._templates: dict[str, Template] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for messages."""
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
            problem = f"messages are {short_repr(messages)}, not a list of mappings"
            raise InputError(problem, hint='pass [{"role": "user", "content": "…"}]')
        for message in messages:
            if not isinstance(message, Mapping):
                problem = f"a message is {short_repr(message)}, not a mapping"
                raise InputError(problem, hint='pass {"role": "user", "content": "…"}')
        values = {
            **self._tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        name = self._choose(template, tools)
        return self._render(name, {key: copy_plain_data(value) for key, value in values.items()})

    def _choose(self, template: str | None, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if not self.sources:
            hint = "format the prompt yourself, or copy chat_template.jinja of the original model into the folder"
            raise UnsupportedModelError("the model has no chat template", file=self._file, hint=hint)
        if template is None:
            if tools and TOOLS in self.sources:
                return TOOLS
            template = next(iter(self.sources)) if len(self.sources) == 1 else DEFAULT
        if template not in self.sources:
            problem = f"there is no chat template {template!r}; there are {', '.join(sorted(self.sources))}"
            raise InputError(problem, file=self._file, hint="choose one of them with `template`")
        return template

    def _render(self, name: str, values: Mapping[str, Any]) -> str:
        try:
            from jinja2.exceptions import SecurityError, TemplateSyntaxError

            from weft.generation.template_sandbox import MessagesError
        except ImportError as error:
            raise missing_package_error("jinja2", "a chat template", error) from error
        try:
            template = self._compile(name)
            environment: Any = template.environment
            text: str = environment.render(template, values)
            return text
        except TemplateSyntaxError as error:
            problem = f"the chat template {name!r} is wrong in line {error.lineno}: {error.message}"
            raise InvalidModelError(problem, file=self._file, hint="fetch the file again") from error
        except (SecurityError, RecursionError, MemoryError) as error:
            problem = f"the chat template {name!r} was stopped: {error}"
            raise InvalidModelError(problem, file=self._file, hint="do not trust this model's files") from error
        except MessagesError as error:
            problem = f"the chat template rejects the messages: {error}"
            raise InputError(problem, file=self._file, hint="change the messages") from error
        except Exception as error:
            problem = f"the chat template {name!r} fails on the messages: {type(error).__name__}: {str(error)[:300]}"
            hint = "compare the messages with the fields that the template reads"
            raise InputError(problem, file=self._file, hint=hint) from error

    def _compile(self, name: str) -> Template:
        template = self._templates.get(name)
        if template is None:
            from weft.generation.template_sandbox import TemplateEnvironment

            if self._environment is None:
                self._environment = TemplateEnvironment()
            with self._environment.limit():
                template = self._environment.from_string(self.sources[name])
            self._templates[name] = template
        return template


def read_chat_templates(folder: Path, config: Config, tokens: Mapping[str, str]) -> ChatTemplates:
    """Read the templates of a folder.

    config: tokenizer_config.json. tokens: the texts of special tokens, by name.
    """
    file = config.path
    sources: dict[str, str] = {}
    content = config.fields.get("chat_template")
    if isinstance(content, list):
        for entry in config.sections("chat_template"):
            name, source = entry.text("name"), entry.text("template")
            if name is None or source is None:
                raise config.field_error("chat_template", "a text, or a list of objects with name and template")
            sources[name] = source
    elif isinstance(content, dict):
        section = config.section("chat_template")
        sources.update((name, section.text(name) or "") for name in section.fields)
    elif content is not None:
        sources[DEFAULT] = config.text("chat_template") or ""
    separate = read_optional_config(folder / "chat_template.json")
    source = separate.text("chat_template")
    if source is not None:
        sources[DEFAULT], file = source, separate.path
    jinja_file = folder / "chat_template.jinja"
    if jinja_file.is_file():
        sources[DEFAULT], file = read_text_file(jinja_file), jinja_file
    for further in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[further.stem] = read_text_file(further)
    return ChatTemplates(sources, tokens, file)


def copy_plain_data(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Copy a value as plain JSON types, so that a template gets no objects with methods of their own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth == 0:
        raise InputError(f"messages nest more than {MAX_DEPTH} deep", hint="pass texts, numbers, lists and mappings")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {copy_plain_data(key, depth - 1): copy_plain_data(entry, depth - 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [copy_plain_data(entry, depth - 1) for entry in value]
    problem = f"a message or variable of a chat has {short_repr(value)}, which is not plain data"
    raise InputError(problem, hint="pass texts, numbers, lists and mappings")
