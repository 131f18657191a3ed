"""Text generation: a folder with a language model in, tokens and text out.

ModelFolder (folder.py) -> Decoder (decoder.py) and Tokenizer (tokenizer.py)
prompts -> Engine (engine.py): steps of the decoder, and of the Sampler (sampler.py) -> tokens -> text
"""
