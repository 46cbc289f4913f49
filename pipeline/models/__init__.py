"""How a model is built: one adapter a family, over the weights of the stock transformers model.

A third family costs one file with a function ``adapt(model) -> Decoder``, and its line in
`families.py`. Imports torch and transformers alone.
"""
