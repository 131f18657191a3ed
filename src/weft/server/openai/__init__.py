"""OpenAI's protocol: models, chat completions, completions and embeddings, as routes on a `weft.Generator`.

`chat_completions.py`, `completions.py` and `embeddings.py` are endpoints. A request becomes prompts and options
(`fields.py`, `sampling.py`, `messages.py`, `tools.py`, `grammar.py`, joined by `chat_request.py`), `start.py` submits
them, and answers become events: text (`answer_text.py`), reasoning and calls of tools (`answer_parser.py`), by the
format that `chat_format.py` and `tool_formats.py` find in the model's chat template.
"""

from weft.server.openai.routes import openai_routes

__all__ = ["openai_routes"]
